"""The worker agent: one per node; it starts, watches and stops the node's training processes.

It carries out the master's decisions. torch is imported inside functions only.
"""
