"""Preflight: nodes are measured before they join a world, and the bad node is named.

Belongs here: rounds, pairs, verdicts, reference figures. Does not belong here: a measurement (the
agent's `health/`), a clock, what is done with a verdict (`job/health`).

A caller goes through a check like this, by `rounds`:

    check = begin(number, participants, references, network=True)
    while check.current is not None:
        ...  # each node of check.current measures; reports are collected until the deadline
        check = conclude(check, reports)
    outcome = judge(check)
    references = references_after(check, outcome)
"""
