"""Plans of a job: pure decisions from its spec, its pods and its master's view.

`planner.plan` uses them; `pods`, `view` and `inputs` hold its inputs, `actions` its output. Does
not belong here: the content of a pod (`holdfast_operator.pods`), the status for people (`status`).
"""
