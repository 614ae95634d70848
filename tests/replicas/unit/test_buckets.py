"""Buckets: which gradients travel together."""

from __future__ import annotations

import torch

from holdfast.local_sgd.sync.group import Group
from holdfast.replicas.buckets import BUCKET, EXTRA, buckets_of


def test_the_first_bucket_is_small_and_others_are_as_large_as_asked_for() -> None:
    """It has two buffers, and all others wait for it; a backward pass fills the last one first."""
    parameters = [torch.zeros(1 << 17, requires_grad=True) for _ in range(60)]  # 0.5 MiB each
    buckets = buckets_of(parameters, Group.of_one(), EXTRA, BUCKET)
    assert [len(one.parameters) for one in buckets] == [2, 50, 8]
    assert buckets[0].parameters[0] is parameters[-1]
    assert [one.tail.numel() for one in buckets] == [0, 0, EXTRA]
    small = buckets_of(parameters, Group.of_one(), EXTRA, 1)
    assert [len(one.parameters) for one in small] == [1] * 60, "no larger than the others"


def test_a_parameter_is_never_cut() -> None:
    """One that is larger than a bucket has one of its own."""
    parameters = [torch.zeros(size, requires_grad=True) for size in (10, 1 << 24, 10)]
    buckets = buckets_of(parameters, Group.of_one(), EXTRA, BUCKET)
    assert [[len(one) for one in each.parameters] for each in buckets] == [[10, 1 << 24], [10]]
