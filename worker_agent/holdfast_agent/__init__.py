"""The worker agent: one per node, starts, watches and stops that node's training processes.

It holds the stream to the master and carries out what the master decides. Decisions about other
nodes do not belong here; torch is imported inside functions only.
"""
