"""When replicas agree: by steps, by time, or by what was measured."""
