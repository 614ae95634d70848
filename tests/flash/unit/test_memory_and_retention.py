"""Memory that is left, steps that stay, steps that are due."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.environment import Environment
from holdfast.flash.memory.memory_budget import Room, memory_left, refusal
from holdfast.flash.schedule import SaveEvery, Schedule, due
from holdfast.flash.storage.retention_rule import chosen, to_delete
from holdfast_wire.messages import Tier
from holdfast_wire.messages.spec import CheckpointPolicy

GIB = 2**30


def _machine(root: Path, available_kib: int, groups: dict[str, tuple[str, int]]) -> Path:
    (root / "proc/self").mkdir(parents=True)
    (root / "proc/meminfo").write_text(f"MemTotal: 1 kB\nMemAvailable: {available_kib} kB\n")
    (root / "proc/self/cgroup").write_text("0::/pod/container\n")
    for name, (limit, used) in groups.items():
        folder = root / "sys/fs/cgroup" / name
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "memory.max").write_text(f"{limit}\n")
        (folder / "memory.current").write_text(f"{used}\n")
    return root


def test_the_tightest_control_group_counts(tmp_path: Path) -> None:
    """A pod's limit above an unlimited container is found, minus what is in use."""
    groups = {"pod": (str(4 * GIB), GIB), "pod/container": ("max", GIB)}
    room = memory_left(_machine(tmp_path, 64 * 2**20, groups))
    assert room.available == 3 * GIB
    assert "pod/memory.max" in room.source


def test_without_a_limit_the_machine_counts(tmp_path: Path) -> None:
    """MemAvailable is the bound where no group limits memory."""
    assert memory_left(_machine(tmp_path, 1024, {})).available == 2**20


def test_this_machine_has_some_memory_left() -> None:
    """The real files can be read."""
    assert memory_left().available > 0


def test_a_refusal_says_how_much_is_needed() -> None:
    """The error names the size, what is left, whose limit it is, and what to do."""
    text = refusal(3 * GIB, Room(available=GIB, source="the pod"), reserve=0)
    assert text is not None
    assert "an arena of 3072 MiB does not fit: 1024 MiB are left by the pod" in text
    assert "Raise that limit by 2048 MiB" in text


def test_what_fits_exactly_is_granted() -> None:
    """The reserve counts, and no byte more."""
    room = Room(available=100, source="")
    assert refusal(90, room, reserve=10) is None
    assert refusal(91, room, reserve=10) is not None


@given(
    st.lists(st.integers(0, 500)),
    st.integers(1, 5),
    st.integers(0, 50),
    st.frozensets(st.integers(0, 500)),
)
def test_retention_keeps_the_newest_the_pinned_and_the_milestones(
    steps: list[int], last: int, every: int, pinned: frozenset[int]
) -> None:
    """A step is deleted exactly when it is neither among the newest nor pinned nor a milestone."""
    gone = to_delete(steps, CheckpointPolicy(keep_last=last, keep_every=every), pinned)
    newest = sorted(set(steps))[-last:]
    for step in set(steps):
        kept = step in newest or step in pinned or (every > 0 and step % every == 0)
        assert (step in gone) is not kept


@pytest.mark.parametrize(
    ("last", "every", "told", "expected"),
    [
        (None, None, "", (3, 0)),
        (None, None, '{"keepLast":7,"keepEvery":50}', (7, 50)),
        (5, None, '{"keepLast":7,"keepEvery":50}', (5, 50)),
        (None, 10, '{"keepLast":7,"keepEvery":50}', (7, 10)),
        (1, 0, '{"keepLast":7,"keepEvery":50}', (1, 0)),
        (2, None, "", (2, 0)),
        (None, None, '{"keep_every": 5}', (3, 5)),
    ],
)
def test_what_is_kept_is_the_scripts_else_the_jobs_choice(
    last: int | None, every: int | None, told: str, expected: tuple[int, int]
) -> None:
    """Number by number; 3 and none where nobody says anything."""
    settings = chosen(last, every, Environment.read({"HOLDFAST_CHECKPOINT": told}).checkpoint)
    assert (settings.keep_last, settings.keep_every) == expected


@pytest.mark.parametrize(
    ("last", "every", "told", "words"),
    [
        (0, None, "", "keep_last=0"),
        (True, None, "", "keep_last=True"),
        (None, -1, "", "keep_every=-1"),
        (None, 2.5, "", "keep_every=2.5"),
        (None, None, "3", "HOLDFAST_CHECKPOINT='3': it is 3: expected an object"),
        (None, None, "7:50", "HOLDFAST_CHECKPOINT='7:50': it is no JSON"),
        (None, None, '{"keepLats":3}', "keepLats is no field of CheckpointPolicy: try keepLast"),
        (None, None, '{"keepLast":-1}', "keep_last=-1"),
    ],
)
def test_a_choice_that_makes_no_sense_is_refused_by_name(
    last: Any, every: Any, told: str, words: str
) -> None:
    """Before anything is saved, and so before anything could be deleted."""
    with pytest.raises(ValueError, match=words):
        chosen(last, every, Environment.read({"HOLDFAST_CHECKPOINT": told}).checkpoint)


def test_steps_fall_due_by_number_alone() -> None:
    """The same step gives the same answer on every rank; storage implies memory."""
    every = SaveEvery(memory=2, storage=5)
    dues = {step: due(step, every, first=2) for step in range(11)}
    kinds = {step: (one.memory, one.storage) for step, one in dues.items()}
    assert kinds[1] == (False, False)
    assert kinds[2] == (True, False)
    assert kinds[5] == (True, True)
    assert kinds[7] == (False, False)


def test_a_negative_distance_is_no_schedule() -> None:
    """The error names the field."""
    with pytest.raises(ValueError, match="storage_every=-1"):
        Schedule(storage_every=-1)


def test_a_schedule_by_tier_is_the_same_as_its_short_forms() -> None:
    """A tier that is not named stays the master's; the caller's mapping may change later."""
    every: dict[str, int | Literal["auto"]] = {"memory": 5, "storage": "auto"}
    told = Schedule(every=every, first=3)
    every["memory"] = 7
    assert (told.own(Tier.MEMORY), told.own(Tier.STORAGE), told.first) == (5, None, 3)
    both = (Schedule(every={"storage": 9}), Schedule(storage_every=9))
    assert [one.over(SaveEvery(memory=2, storage=4)) for one in both] == [
        SaveEvery(memory=2, storage=9)
    ] * 2
    changed = dataclasses.replace(both[1], storage_every=8)
    assert changed.own(Tier.STORAGE) == 8
    assert hash(changed) == hash(Schedule(storage_every=8))


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"every": {"disk": 5}}, "every has the tier 'disk': expected 'memory' or 'storage'"),
        ({"every": {"memory": -1}}, r"every\['memory'\]=-1: expected a whole number"),
        ({"every": {"memory": True}}, r"every\['memory'\]=True"),
        ({"every": 5}, "every=5: expected steps by tier"),
        (
            {"every": {"memory": 5}, "memory_every": 5},
            "memory_every=5 and every={'memory': 5} both set memory: give one of them",
        ),
    ],
)
def test_a_schedule_by_tier_that_makes_no_sense_is_refused(
    arguments: dict[str, Any], words: str
) -> None:
    """The error names the tier, its value and the remedy."""
    with pytest.raises(ValueError, match=words):
        Schedule(**arguments)


def test_a_word_that_is_no_number_is_no_schedule() -> None:
    """Only "auto" stands for a number; the first step is always one."""
    with pytest.raises(ValueError, match="memory_every='often'"):
        Schedule(memory_every="often")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="first='auto'"):
        Schedule(first="auto")  # type: ignore[arg-type]
