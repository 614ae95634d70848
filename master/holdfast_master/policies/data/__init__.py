"""Decisions about training data: leases of shards to readers."""
