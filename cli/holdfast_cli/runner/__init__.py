"""The local runner: an operator of one job, on this machine, with processes for pods.

Belongs here: files, certificates, processes and the OperatorService.Sync stream of one local job.
Does not belong here: the decision about pods (the operator's pure `plan`) and about the world (the
master).
"""
