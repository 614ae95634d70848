"""`holdfast run --chaos`: seeded faults on a job, then a comparison with an undisturbed run."""
