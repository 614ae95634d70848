"""The worker agent: one per node; it starts, watches and stops the node's training processes.

It holds the stream to the master and carries out the master's decisions. Decisions about other
nodes do not belong here. torch is imported inside functions only.
"""
