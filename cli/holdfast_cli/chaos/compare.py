"""Compares a run with faults to an undisturbed one: samples and losses, step by step.

The samples of a step are compared by the script's fingerprint (`job.step`), if it gives one. Their
number alone would let as many wrong samples pass.

Pure, except for reading the step logs (`read`). The figures of a step are those of its newest
round: a repeated step replaces the lost one.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable, Mapping
from pathlib import Path

from holdfast_cli.render import counted

TOLERANCE = 0.05
"""Relative difference of a step's loss that counts as the same. Worlds of other sizes add float32
numbers in another order, and training amplifies the difference."""


@dataclasses.dataclass(frozen=True, slots=True)
class RankLine:
    """Output of one rank about one step."""

    step: int
    rank: int
    round: int
    world_size: int
    samples: int
    loss: float | None
    fingerprint: int | None = None
    """Sum that identifies the samples; None: the script gives none."""


@dataclasses.dataclass(frozen=True, slots=True)
class WorldStep:
    """One step of the whole world, in one round."""

    samples: int
    fingerprint: int | None
    """Sum over the ranks; None: a rank gave none."""
    loss: float | None
    """Mean over the samples; None: no rank reported one."""
    whole: bool
    """True: every rank of its round wrote its line. A rank can die between step and line."""


@dataclasses.dataclass(frozen=True, slots=True)
class RunComparison:
    """Verdict with its figures."""

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


def read(directory: Path) -> list[RankLine]:
    """Return the lines of every rank; a torn last line is left out."""
    return [
        line
        for file in sorted(directory.glob("rank-*.jsonl"))
        for text in file.read_text(errors="replace").splitlines()
        if (line := _line(text)) is not None
    ]


def _line(text: str) -> RankLine | None:
    try:
        return RankLine(**json.loads(text))
    except (ValueError, TypeError):
        return None


def steps(lines: Iterable[RankLine]) -> dict[int, WorldStep]:
    """Return the newest figures of each step."""
    return _newest(tries(lines))


def tries(lines: Iterable[RankLine]) -> dict[tuple[int, int], WorldStep]:
    """Return the figures of each step in each round that did it, by (step, round), in order."""
    found: dict[tuple[int, int], dict[int, RankLine]] = {}
    for line in lines:
        found.setdefault((line.step, line.round), {})[line.rank] = line
    return {key: _step(list(found[key].values())) for key in sorted(found)}


def _newest(every: Mapping[tuple[int, int], WorldStep]) -> dict[int, WorldStep]:
    return {number: step for (number, _), step in every.items()}


def _step(lines: list[RankLine]) -> WorldStep:
    samples = sum(line.samples for line in lines)
    given = [line.fingerprint for line in lines if line.fingerprint is not None]
    fingerprint = sum(given) if len(given) == len(lines) else None
    said = [line for line in lines if line.loss is not None]
    weight = sum(line.samples for line in said) or len(said)
    total = sum((line.loss or 0.0) * (line.samples or 1) for line in said)
    loss = total / weight if said else None
    return WorldStep(samples, fingerprint, loss, whole=len(lines) == lines[0].world_size)


def compare(broken: Iterable[RankLine], unbroken: Iterable[RankLine]) -> RunComparison:
    """Compare a run with faults to an undisturbed one."""
    every = tries(broken)
    mine, its = _newest(every), steps(unbroken)
    problem = _not_comparable(mine, its)
    if problem:
        return RunComparison(same=False, reason=problem)
    torn = [n for n, step in mine.items() if not step.whole]
    compared = [n for n in its if mine[n].whole]
    differences = {n: _difference(mine[n], its[n]) for n in compared}
    worst = max(differences, key=lambda n: differences[n], default=0)
    problem = _other_samples(every, its)
    if not problem and differences.get(worst, 0.0) > TOLERANCE:
        problem = f"step {worst} has loss {mine[worst].loss}, in the whole run {its[worst].loss}"
    return RunComparison(
        same=not problem,
        reason=problem
        or f"{counted(len(compared), 'step')} saw {_what(its)} and came to the same losses",
        steps=len(compared),
        torn=len(torn),
        redone=len(every) - len(mine),
        worst=differences.get(worst, 0.0),
    )


def _differ(steps: int) -> str:
    return "1 step differs" if steps == 1 else f"{steps} steps differ"


def _other_samples(every: Mapping[tuple[int, int], WorldStep], its: Mapping[int, WorldStep]) -> str:
    """Describe the first step whose samples differ from the undisturbed run's, repeated or not."""
    whole = {key: step for key, step in every.items() if step.whole}
    short = [key for key in whole if whole[key].samples != its[key[0]].samples]
    wrong = [key for key in whole if whole[key].fingerprint != its[key[0]].fingerprint]
    if short:
        number, round_number = short[0]
        return (
            f"step {number} saw {whole[short[0]].samples} samples in round {round_number}, in the "
            f"whole run {its[number].samples}; {_differ(len(short))}"
        )
    if wrong:
        number, round_number = wrong[0]
        return (
            f"step {number} saw other samples in round {round_number} than in the whole run, by "
            f"their fingerprint; {_differ(len(wrong))}"
        )
    return ""


def _what(its: Mapping[int, WorldStep]) -> str:
    """Describe the evidence that the samples were the same."""
    if all(step.fingerprint is not None for step in its.values()):
        return "the same samples (compared by their fingerprints)"
    return "as many samples (the script gives no fingerprint of which ones)"


def _not_comparable(mine: Mapping[int, WorldStep], its: Mapping[int, WorldStep]) -> str:
    if not its:
        return "no rank called job.step() in the whole run: there is nothing to compare with"
    if min(its) != 1:
        return (
            f"the whole run began at step {min(its)}: a checkpoint was there already; put "
            "$(HOLDFAST_JOB_UID) into the checkpoint directory's name"
        )
    missing = sorted(its.keys() - mine.keys())
    if missing:
        return f"step {missing[0]} was never done; {counted(len(missing), 'step')} missing"
    beyond = sorted(mine.keys() - its.keys())
    return f"step {beyond[0]} is beyond the whole run's last, {max(its)}" if beyond else ""


def _difference(one: WorldStep, other: WorldStep) -> float:
    if one.loss is None or other.loss is None:
        return 0.0
    return abs(one.loss - other.loss) / max(abs(other.loss), 1e-9)
