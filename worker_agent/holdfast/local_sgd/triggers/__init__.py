"""Triggers of an agreement among replicas: by steps, by time, or by what was measured."""
