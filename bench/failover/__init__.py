"""Masters killed at random instants of real jobs, restarted with and without their journal."""
