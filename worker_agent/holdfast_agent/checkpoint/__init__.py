"""The node's flash-checkpoint server inside the agent, and its messages with the master.

The checkpoint itself does not belong here (`holdfast.flash`).
"""
