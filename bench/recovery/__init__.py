"""Time that a job stands still after a fault: Holdfast beside torchrun and DLRover.

``python -m bench.recovery`` runs a plan and writes one JSON line per measurement; the Markdown page
is generated from those lines. The measured script knows nothing of the systems, the measuring code
knows nothing but the script's log, so every system is measured by the same rule.
"""
