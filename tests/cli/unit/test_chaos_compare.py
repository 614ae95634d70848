"""Comparison of the work of two runs, from the lines that their ranks wrote."""

from __future__ import annotations

import json
from pathlib import Path

from holdfast_cli.chaos.compare import RankLine, compare, read


def world(
    step: int,
    size: int,
    number: int = 1,
    loss: float = 2.0,
    samples: int = 8,
    fingerprint: int | None = None,
) -> list[RankLine]:
    """Return the lines of a world's ranks for one step; the fingerprint is shared out as well."""
    shares = [
        None
        if fingerprint is None
        else fingerprint * (rank + 1) // size - fingerprint * rank // size
        for rank in range(size)
    ]
    return [
        RankLine(step, rank, number, size, samples // size, loss, shares[rank])
        for rank in range(size)
    ]


def run(*steps: list[RankLine]) -> list[RankLine]:
    """Return all lines of a run."""
    return [line for lines in steps for line in lines]


PEACE = run(world(1, 2), world(2, 2, loss=1.5), world(3, 2, loss=1.0))


def test_a_run_in_other_worlds_did_the_same_work() -> None:
    """Another number of ranks, another round, a step done again: the newest figures count."""
    chaos = run(
        world(1, 2),
        world(2, 2, loss=9.0),
        world(2, 1, number=2, loss=1.5),
        world(3, 4, number=3, loss=1.01),
    )
    found = compare(chaos, PEACE)
    assert found.same, found.reason
    assert (found.steps, found.redone, found.torn) == (3, 1, 0)
    assert 0.009 < found.worst < 0.011


def test_a_missing_step_is_no_same_work() -> None:
    """The script went on from a checkpoint that it never had."""
    found = compare(run(world(1, 2), world(3, 2, loss=1.0)), PEACE)
    assert not found.same
    assert "step 2 was never done" in found.reason


def test_samples_that_were_left_out_are_found() -> None:
    """The same loss from fewer samples is other work."""
    found = compare(run(PEACE[:4], world(3, 2, loss=1.0, samples=6)), PEACE)
    assert not found.same
    assert "step 3 saw 6 samples in round 1, in the whole run 8" in found.reason


KNOWN = run(*(world(step, 2, fingerprint=1000 + step) for step in (1, 2, 3)))


def test_as_many_wrong_samples_are_found() -> None:
    """Each step saw 8 samples and came to the same loss; only the fingerprint tells."""
    found = compare(run(KNOWN[:4], world(3, 2, fingerprint=1004)), KNOWN)
    assert not found.same
    assert "step 3 saw other samples in round 1 than in the whole run" in found.reason


def test_wrong_samples_of_a_step_that_was_done_again_are_found() -> None:
    """A checkpoint may have been taken after them."""
    chaos = run(KNOWN[:2], world(2, 2, fingerprint=1), world(2, 2, number=2, fingerprint=1002))
    found = compare(run(chaos, world(3, 4, number=2, fingerprint=1003)), KNOWN)
    assert not found.same
    assert "step 2 saw other samples in round 1" in found.reason


def test_what_was_compared_is_said() -> None:
    """By fingerprint, in any world; without one only their number. One run's alone is no proof."""
    same = compare(run(KNOWN[:4], world(3, 4, number=2, fingerprint=1003)), KNOWN)
    assert (same.same, same.redone) == (True, 0)
    assert "3 steps saw the same samples (compared by their fingerprints)" in same.reason
    assert "3 steps saw as many samples (the script gives no" in compare(PEACE, PEACE).reason
    unknown = run(*(world(step, 2) for step in (1, 2, 3)))
    assert not compare(unknown, KNOWN).same
    assert not compare(KNOWN, unknown).same


def test_another_loss_is_found() -> None:
    """Beyond what float32 sums in another order explain."""
    found = compare(run(PEACE[:4], world(3, 2, loss=1.2)), PEACE)
    assert not found.same
    assert "step 3 has loss 1.2" in found.reason


def test_a_rank_that_died_before_its_line_tears_only_that_step() -> None:
    """The step is left out and counted; the others are compared."""
    found = compare(run(PEACE[:4], world(3, 2, loss=1.0)[:1]), PEACE)
    assert found.same, found.reason
    assert (found.steps, found.torn) == (2, 1)


def test_runs_that_cannot_be_compared_say_why() -> None:
    """No steps at all; a whole run that began in the middle; steps beyond its end."""
    assert "no rank called job.step()" in compare(PEACE, []).reason
    assert "$(HOLDFAST_JOB_UID)" in compare(PEACE, run(world(2, 1), world(3, 1))).reason
    assert "step 4 is beyond" in compare(run(PEACE, world(4, 2)), PEACE).reason


def test_a_torn_last_line_is_left_out(tmp_path: Path) -> None:
    """A disk that was full, or a copy that was cut."""
    whole = {"step": 1, "rank": 0, "round": 1, "world_size": 1, "samples": 4, "loss": None}
    (tmp_path / "rank-0.jsonl").write_text(json.dumps(whole) + "\n" + '{"step": 2, "ra')
    (tmp_path / "rank-1.jsonl").write_text('[1]\n{"other": 1}\n')
    assert read(tmp_path) == [RankLine(1, 0, 1, 1, 4, None)]
