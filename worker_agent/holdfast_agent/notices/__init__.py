"""Asks the metadata services of clouds, and a file, for notices about this node's end.

Belongs here: asking, each source on a thread of its own. Does not belong here: the meaning of the
answers (`policies.notices`), the consequences (the master's `policies.notices`).
"""
