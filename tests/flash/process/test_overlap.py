"""A copy that runs beside the next forward and backward saves what the step left, in every step."""

from __future__ import annotations

from pathlib import Path

import pytest

from checkpoints.flash_overlap import KINDS, STEPS
from checkpoints.flash_world import Worlds

pytestmark = [pytest.mark.train, pytest.mark.timeout(300)]


@pytest.mark.parametrize("late", [False, True], ids=["beside", "late"])
@pytest.mark.parametrize("adamw", KINDS)
@pytest.mark.parametrize("kind", ["plain", "fsdp"])
def test_every_step_is_saved_as_it_was(
    worlds: Worlds, tmp_path: Path, kind: str, adamw: str, *, late: bool
) -> None:
    """Weights, moments, BatchNorm's buffers and an average that is written at once.

    Beside: as it runs. Late: the copy begins only when it is joined, so a write that nobody
    joined for shows each time and not by chance.
    """
    answers = worlds.run(
        job="overlap", kind=kind, world=1 if kind == "plain" else 2, root=str(tmp_path / "ck"),
        adamw=adamw, late=late, plant="",
    )  # fmt: skip
    for answer in answers:
        assert answer["wrong"] == []
        assert answer["compared"] > 20 * STEPS


@pytest.mark.parametrize(
    ("plant", "seen"),
    [("buffers", "running_mean"), ("hook", "exp_avg"), ("join", "weight")],
    ids=["buffers", "hook", "join"],
)
def test_the_comparison_finds_what_is_copied_too_late(
    worlds: Worlds, tmp_path: Path, plant: str, seen: str
) -> None:
    """With buffers taken for trained, no pre-hook, or no `join()` before a write by hand."""
    (answer,) = worlds.run(
        job="overlap", kind="plain", world=1, root=str(tmp_path / "ck"), adamw="foreach",
        late=True, plant=plant,
    )  # fmt: skip
    assert any(seen in name for name in answer["wrong"]), answer
