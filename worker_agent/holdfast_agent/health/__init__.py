"""Health: what an agent measures of its node and its ranks, for the master to judge."""
