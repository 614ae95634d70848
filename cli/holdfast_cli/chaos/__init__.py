"""`holdfast run --chaos`: seeded faults on a job, then a comparison with a run left in peace."""
