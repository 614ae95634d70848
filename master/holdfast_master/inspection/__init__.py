"""Looking at what a master wrote down: show it, verify it, decide it again.

Tools for people, in a process of their own: `holdfast journal` and `holdfast replay` run
`python -m holdfast_master.inspection`. Nothing here writes, and nothing of the master imports it.
"""
