"""Tools for the files of a master: show them, verify them, decide again.

They run in a process of their own: `holdfast journal` and `holdfast replay` run
`python -m holdfast_master.replay.inspect`. Nothing here writes, and nothing of the master imports
it.
"""
