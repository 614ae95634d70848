"""The checkpoint server of a node: connections to trainers, arenas, commits, restores, peers.

It runs in the agent; without an agent it runs in a process beside each trainer. Nothing here
imports torch.
"""
