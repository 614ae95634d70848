"""Training process's side of a checkpoint: state, plan, copy, restore.

Does not belong here: storage and other nodes (`server`), the public calls (`checkpointer`, `dcp`).
"""
