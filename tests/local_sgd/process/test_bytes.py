"""Bytes of a round: what the loopback of a network of its own carries, and the formulas."""

from __future__ import annotations

import subprocess

import pytest

from local_sgd.replica_world import ReplicaWorlds

pytestmark = [pytest.mark.train, pytest.mark.timeout(300)]
VALUES, MANY = 100_000, 400_000
OF_FP32 = {"none": 1.0, "bf16": 0.5, "int8": 0.254, "int4": 0.129}
"""Bytes of a codec beside those of fp32, as the module of codecs states them."""


def _skip_without_namespaces() -> None:
    if subprocess.run(["unshare", "--net", "true"], check=False, capture_output=True).returncode:
        pytest.skip("needs the right to make a network namespace")


@pytest.mark.parametrize("replicas", [2, 4])
def test_the_wire_carries_what_the_formula_says(replicas: int) -> None:
    """By codec, 2·(n-1)/n·P·b for each rank and round: counted, and on the wire within 3 %.

    The difference is headers, reports and barriers.
    """
    _skip_without_namespaces()
    with ReplicaWorlds(OWN_NETWORK="1") as alone:
        for codec, share in OF_FP32.items():
            answers = alone.train(
                job="wire", replicas=replicas, sizes=[MANY, 0, 33], codec=codec, rounds=4
            )
            ring = 2 * (replicas - 1) / replicas * MANY * 4 * share
            for answer in answers:
                assert answer["sent"] / 4 == pytest.approx(ring, rel=0.01), codec
            carried = min(answer["carried"] for answer in answers) / (4 * replicas)
            assert carried == pytest.approx(ring, rel=0.03), codec


@pytest.mark.parametrize(("codec", "most"), [("none", 1.02), ("int8", 0.27), ("int4", 1.05 / 8)])
def test_bytes_of_a_step_beside_ddp_in_fp32(worlds: ReplicaWorlds, codec: str, most: float) -> None:
    """A round each H steps sends at most `most`/H of what H all-reduces of fp32 gradients send."""
    replicas, steps = 4, 16
    answers = worlds.train(
        replicas=replicas, steps=steps, sizes=[VALUES, 77], codec=codec, rounds=2
    )
    ddp = 2 * (replicas - 1) / replicas * (VALUES + 77) * 4
    for answer in answers:
        assert answer["sent"] / (2 * steps) / ddp <= most / steps


def test_gta_sends_no_more_than_a_mean(worlds: ReplicaWorlds) -> None:
    """Consensus and divisor are found where the chunks are merged: one transfer, not three."""
    merging = {"consensus": "sum", "sparsification": "magnitude", "density": 0.5}
    mean, gta = (
        worlds.train(replicas=3, sizes=[VALUES], rounds=1, merging=one)[0]["sent"]
        for one in ({}, merging)
    )
    assert gta <= 1.01 * mean
