"""Health of the running world: what agents sampled, and what follows from the verdicts."""
