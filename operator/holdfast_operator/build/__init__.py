"""What one pod of a job is made of. Pure: nothing is started and nothing is read here.

`process` makes the command of the local runner's process backend from a pod template, `template`
says what of a template that backend cannot honour, `contract` names the environment that every
agent gets, wherever it runs.
"""
