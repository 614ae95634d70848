"""Reductions of real ranks against the formulas: any length, any number of ranks, every codec."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from house.extended import usual
from local_sgd.reductions import drawn, weights_of
from local_sgd.replica_world import ReplicaWorlds
from local_sgd.scalar_edit import gta

pytestmark = [pytest.mark.train, pytest.mark.timeout(300)]
MORE = pytest.mark.extended(
    "other values of the same test",
    held_by=[
        "local_sgd/process/test_reductions.py::test_every_length_and_number_of_ranks",
        "local_sgd/process/test_reductions.py::test_gta_reduces_with_any_density",
        "local_sgd/process/test_reductions.py::test_what_a_codec_loses_comes_later",
    ],
)
SIZES = [0, 1, 255, 0, 513, 7]
QUANTUM = {"none": 1e-6, "bf16": 2**-8, "int8": 1 / 127, "int4": 1 / 7}
"""The most that two roundings of values up to 1 lose."""


def _reduce(worlds: ReplicaWorlds, **world: Any) -> list[dict[str, Any]]:
    settings = {"job": "reduce", "kind": "gloo", "codec": "none", "feedback": False, "rounds": 1}
    return worlds.run(**{**settings, "sizes": SIZES, **world})


def _merged(world: dict[str, Any], consensus: str | None = None, kept: float = 1.0) -> list[float]:
    """Return what the formula makes of all ranks' deltas, unit behind unit."""
    every = [drawn(rank, world["sizes"]) for rank in range(world["world"])]
    found = []
    for unit, weights in enumerate(weights_of(world)):
        deltas = [_trimmed(one[unit], kept) for one in every]
        found += gta(deltas, weights, consensus, normalize=True)
    return found


def _trimmed(values: Sequence[float], density: float) -> list[float]:
    """Return the values, all but the ⌊ρn⌋ greatest set to 0, at least one."""
    kept = max(1, int(density * len(values)))
    order = sorted(range(len(values)), key=lambda at: -abs(values[at]))[:kept]
    return [value if at in order else 0.0 for at, value in enumerate(values)]


@pytest.mark.parametrize("codec", QUANTUM)
@pytest.mark.parametrize("ranks", usual([1, 2, 3, 5], 1, 3, more=MORE))
def test_every_length_and_number_of_ranks(worlds: ReplicaWorlds, ranks: int, codec: str) -> None:
    """Empty units, units of one value, units that chunks cut: the mean, bitwise equal on all."""
    answers = _reduce(worlds, world=ranks, codec=codec)
    wanted = _merged({"world": ranks, "sizes": SIZES})
    for answer in answers:
        assert answer["last"] == answers[0]["last"]
        assert answer["last"] == pytest.approx(wanted, abs=QUANTUM[codec])


@pytest.mark.parametrize("density", usual([1.0, 0.3], 0.3, more=MORE))
@pytest.mark.parametrize("consensus", ["sum", "count", None])
def test_gta_reduces_with_any_density(
    worlds: ReplicaWorlds, consensus: str | None, density: float
) -> None:
    """All ranks get the merged delta, not their own: thinned out, too (ATorch bug 2)."""
    merging: dict[str, Any] = {"consensus": consensus}
    if density < 1:
        merging |= {"sparsification": "magnitude", "density": density}
    answers = _reduce(worlds, world=3, merging=merging)
    wanted = _merged({"world": 3, "sizes": SIZES}, consensus, density)
    for answer in answers:
        assert answer["last"] == answers[0]["last"]
        assert answer["last"] == pytest.approx(wanted, abs=1e-6)


@pytest.mark.parametrize("codec", usual(["bf16", "int8", "int4"], "int4", more=MORE))
@pytest.mark.parametrize("left_out", [[], [1]], ids=["all", "one left out"])
def test_what_a_codec_loses_comes_later(
    worlds: ReplicaWorlds, codec: str, left_out: list[int]
) -> None:
    """After 12 rounds the results and the errors of both stages add up to 12 exact means."""
    rounds = 12
    world = {"world": 3, "codec": codec, "rounds": rounds, "sizes": SIZES, "left_out": left_out}
    answers = _reduce(worlds, **world, feedback=True)
    exact = _merged({"world": 3, "sizes": SIZES, "left_out": left_out})
    found = list(answers[0]["total"])
    starts = [sum(SIZES[:unit]) for unit in range(len(SIZES))]
    for unit, weights in enumerate(weights_of(world)):
        for rank, answer in enumerate(answers):
            for at, error in enumerate(answer["sent"][unit]):
                found[starts[unit] + at] += weights[rank] * error
            begin, errors = answer["merged"][unit]
            for at, error in enumerate(errors):
                found[starts[unit] + begin + at] += error
    assert found == pytest.approx([rounds * one for one in exact], abs=2e-5)
    wrong = max(abs(a - rounds * b) for a, b in zip(answers[0]["total"], exact, strict=True))
    assert wrong <= 2 * QUANTUM[codec]
    plain = _reduce(worlds, **world, feedback=False)[0]["total"]
    assert wrong < 0.5 * max(abs(a - rounds * b) for a, b in zip(plain, exact, strict=True))
