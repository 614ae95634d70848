"""The command line: `holdfast run|watch|status|nodes|events|goodput|scale|…`.

Belongs here: talking to people and to masters, and the local runner, which starts a job's
processes. Does not belong here: decisions about training (the master's) or about pods (the
operator's `plan`).
"""
