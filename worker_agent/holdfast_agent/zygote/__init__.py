"""The zygote: a process that has imported torch and forks workers in milliseconds.

`handle` is the agent's side, `protocol` the messages, `loop` the zygote's own. `child` and `script`
are the steps of a worker between its fork and the user's first line. Nothing in this package knows
about masters, rendezvous or budgets, and no module imports torch at its top.
"""
