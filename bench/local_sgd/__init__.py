"""Benchmark of local SGD: bytes, shaped links, slow replicas, losses, replicas that go wrong."""
