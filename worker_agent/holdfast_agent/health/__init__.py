"""Health: what an agent measures of its node and its ranks, for the master to judge.

Belongs here: asking the ranks' worker servers and the kernel, measuring the node before it joins.
Does not belong here: the start of a worker server (`zygote`), a verdict on a node of a job: the
master has the figures of all nodes.
"""
