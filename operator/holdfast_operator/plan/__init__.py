"""What to do for a job now: pure plans from its spec, its pods and its master's word.

`decide.plan` is the front door; `pods`, `view` and `situation` hold its inputs, `actions` its
output. What a pod is made of is in `build`, what people read in `status`.
"""
