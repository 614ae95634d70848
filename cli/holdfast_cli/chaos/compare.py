"""Whether a run with faults did the same work as a whole one: samples and losses, step by step.

Which samples a step saw is compared where the script says so by a fingerprint (`job.step`): by
their number alone, as many wrong ones would pass.

Pure, but for reading the step logs (`read`). A step's figures are those of its newest round: what
was done again replaces what was lost.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable, Mapping
from pathlib import Path

TOLERANCE = 0.05
"""Relative difference of a step's loss that counts as the same. Worlds of other sizes add float32
numbers in another order, and training amplifies the difference."""


@dataclasses.dataclass(frozen=True, slots=True)
class Line:
    """What one rank said of one step."""

    step: int
    rank: int
    round: int
    world_size: int
    samples: int
    loss: float | None
    fingerprint: int | None = None
    """Which samples those were; None: the script says nothing of it."""


@dataclasses.dataclass(frozen=True, slots=True)
class Step:
    """One step of the whole world, in one round."""

    samples: int
    fingerprint: int | None
    """Sum of the ranks'; None: not every rank gave one."""
    loss: float | None
    """Mean over the samples; None: no rank said one."""
    whole: bool
    """Every rank of its round has said its part. A rank can die between the step and its line."""


@dataclasses.dataclass(frozen=True, slots=True)
class Comparison:
    """The verdict and what it rests on."""

    same: bool
    reason: str
    steps: int = 0
    """Steps that were compared."""
    torn: int = 0
    """Steps left out because a rank died before it wrote its line."""
    redone: int = 0
    """Steps that were done more than once."""
    worst: float = 0.0
    """Largest relative difference of a loss."""


def read(directory: Path) -> list[Line]:
    """Return the lines of every rank; a torn last line is left out."""
    return [
        line
        for file in sorted(directory.glob("rank-*.jsonl"))
        for text in file.read_text(errors="replace").splitlines()
        if (line := _line(text)) is not None
    ]


def _line(text: str) -> Line | None:
    try:
        return Line(**json.loads(text))
    except (ValueError, TypeError):
        return None


def steps(lines: Iterable[Line]) -> dict[int, Step]:
    """Return the newest figures of each step."""
    return _newest(tries(lines))


def tries(lines: Iterable[Line]) -> dict[tuple[int, int], Step]:
    """Return the figures of each step in each round that did it, by (step, round), in order."""
    found: dict[tuple[int, int], dict[int, Line]] = {}
    for line in lines:
        found.setdefault((line.step, line.round), {})[line.rank] = line
    return {key: _step(list(found[key].values())) for key in sorted(found)}


def _newest(every: Mapping[tuple[int, int], Step]) -> dict[int, Step]:
    return {number: step for (number, _), step in every.items()}


def _step(lines: list[Line]) -> Step:
    samples = sum(line.samples for line in lines)
    given = [line.fingerprint for line in lines if line.fingerprint is not None]
    fingerprint = sum(given) if len(given) == len(lines) else None
    said = [line for line in lines if line.loss is not None]
    weight = sum(line.samples for line in said) or len(said)
    total = sum((line.loss or 0.0) * (line.samples or 1) for line in said)
    loss = total / weight if said else None
    return Step(samples, fingerprint, loss, whole=len(lines) == lines[0].world_size)


def compare(broken: Iterable[Line], unbroken: Iterable[Line]) -> Comparison:
    """Compare a run with faults with one without."""
    every = tries(broken)
    mine, its = _newest(every), steps(unbroken)
    problem = _not_comparable(mine, its)
    if problem:
        return Comparison(same=False, reason=problem)
    torn = [n for n, step in mine.items() if not step.whole]
    compared = [n for n in its if mine[n].whole]
    differences = {n: _difference(mine[n], its[n]) for n in compared}
    worst = max(differences, key=lambda n: differences[n], default=0)
    problem = _other_samples(every, its)
    if not problem and differences.get(worst, 0.0) > TOLERANCE:
        problem = f"step {worst} has loss {mine[worst].loss}, in the whole run {its[worst].loss}"
    return Comparison(
        same=not problem,
        reason=problem or f"{len(compared)} steps saw {_what(its)} and came to the same losses",
        steps=len(compared),
        torn=len(torn),
        redone=len(every) - len(mine),
        worst=differences.get(worst, 0.0),
    )


def _other_samples(every: Mapping[tuple[int, int], Step], its: Mapping[int, Step]) -> str:
    """Which step saw other samples than in the whole run, were it done again later or not."""
    whole = {key: step for key, step in every.items() if step.whole}
    short = [key for key in whole if whole[key].samples != its[key[0]].samples]
    wrong = [key for key in whole if whole[key].fingerprint != its[key[0]].fingerprint]
    if short:
        number, round_number = short[0]
        return (
            f"step {number} saw {whole[short[0]].samples} samples in round {round_number}, in the "
            f"whole run {its[number].samples}; {len(short)} steps differ"
        )
    if wrong:
        number, round_number = wrong[0]
        return (
            f"step {number} saw other samples in round {round_number} than in the whole run, by "
            f"their fingerprint; {len(wrong)} steps differ"
        )
    return ""


def _what(its: Mapping[int, Step]) -> str:
    """What is known of the samples that were the same."""
    if all(step.fingerprint is not None for step in its.values()):
        return "the same samples (compared by their fingerprints)"
    return "as many samples (the script gives no fingerprint of which ones)"


def _not_comparable(mine: Mapping[int, Step], its: Mapping[int, Step]) -> str:
    if not its:
        return "no rank called job.step() in the whole run: there is nothing to compare with"
    if min(its) != 1:
        return (
            f"the whole run began at step {min(its)}: a checkpoint was there already; put "
            "$(HOLDFAST_JOB_UID) into the checkpoint directory's name"
        )
    missing = sorted(its.keys() - mine.keys())
    if missing:
        return f"step {missing[0]} was never done; {len(missing)} steps are missing"
    beyond = sorted(mine.keys() - its.keys())
    return f"step {beyond[0]} is beyond the whole run's last, {max(its)}" if beyond else ""


def _difference(one: Step, other: Step) -> float:
    if one.loss is None or other.loss is None:
        return 0.0
    return abs(one.loss - other.loss) / max(abs(other.loss), 1e-9)
