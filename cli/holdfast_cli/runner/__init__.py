"""The local runner: an operator of one job, on this machine, with processes for pods.

Belongs here: files, certificates, processes and the OperatorService.Sync stream of one local job.
Does not belong here: what pods there should be (the operator's pure `plan` says that) and what the
world should be (the master says that).
"""
