"""The job as the master knows it: its state, and what each input changes in it. Pure.

Layers, top to bottom: `reconcile`, `takeover`, `requests`, `worlds`, `checkpoints`, `nodes` and
`rescale`, `incidents`, `state`. Sockets, files and clocks do not belong here.
"""
