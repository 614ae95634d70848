"""Saves of one world load on any other: from storage, and from memory after a kill."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pytest

from checkpoints.flash_world import Keeping, Worlds
from house.extended import usual

pytestmark = [pytest.mark.train, pytest.mark.timeout(300)]
OTHERS = pytest.mark.extended(
    "the other worlds of the same refusals and shapes",
    held_by=[
        "flash/process/test_worlds.py::test_what_one_rank_refuses_no_rank_loads",
        "flash/process/test_worlds.py::test_shapes_that_no_world_divides_go_from_one_world_to_the_next",
    ],
)
CELLS = [("plain", 1), ("ddp", 2), ("ddp", 3), ("fsdp", 1), ("fsdp", 2), ("fsdp", 3)]


def _wrong(name: str, answers: list[Any], **wanted: Any) -> list[str]:
    """Return a line for each rank whose answer is another than the wanted one."""
    return [f"{name}: {one}" for one in answers if any(one[key] != wanted[key] for key in wanted)]


def test_every_world_loads_what_every_other_saved(worlds: Worlds, tmp_path: Path) -> None:
    """{plain, DDP, FSDP2} × worlds of 1 to 3, from storage: exact, weights and optimizer.

    Each into one other, so that every kind and size saves once and loads once.
    """
    wrong = []
    for number, (kind, count) in enumerate(CELLS):
        root = str(tmp_path / f"{kind}-{count}")
        (saved, *_) = worlds.run(kind=kind, world=count, root=root, steps=2)
        other, size = CELLS[(number + 4) % 6]
        answers = worlds.run(kind=other, world=size, root=root, steps=0, seed=7)
        pair = f"{kind} {count} → {other} {size}"
        wrong += _wrong(pair, answers, start=2, loaded=saved["saved"])
    assert wrong == []


def test_a_killed_world_resumes_from_memory_in_any_other(worlds: Worlds, tmp_path: Path) -> None:
    """SIGKILL of all ranks, nothing on storage: the newest step in the arenas is exact."""
    wrong = []
    pairs = [(("fsdp", 2), ("fsdp", 2)), (("fsdp", 3), ("ddp", 2)), (("ddp", 2), ("fsdp", 3))]
    for number, ((kind, count), (other, size)) in enumerate(pairs):
        folder = tmp_path / str(number)
        folder.mkdir()
        with Keeping(folder) as keeping:
            here = {"root": str(folder / "ck"), "arena": keeping.path, "durable": False}
            (saved, *_) = worlds.run(kind=kind, world=count, steps=5, round=1, die=True, **here)
            again = worlds.run(kind=other, world=size, steps=2, round=2, seed=7, die=True, **here)
            third = worlds.run(kind=other, world=size, steps=0, round=3, seed=8, **here)
        wrong += _wrong(f"{kind} {count} → {other} {size}", again, start=5, loaded=saved["saved"])
        wrong += _wrong(f"{other} {size} again", third, start=7, loaded=again[0]["saved"])
    assert wrong == []


def test_a_resumed_world_goes_on_as_if_nothing_had_happened(worlds: Worlds, tmp_path: Path) -> None:
    """Weights, moments, schedule and random numbers after 2 + 3 steps are those after 5."""
    whole = worlds.run(kind="fsdp", world=2, root=str(tmp_path / "a"), steps=5)
    root = str(tmp_path / "b")
    worlds.run(kind="fsdp", world=2, root=root, steps=2)
    parts = worlds.run(kind="fsdp", world=2, root=root, steps=3, seed=9)
    assert whole[0]["random"] != whole[1]["random"]
    for one, other in itertools.zip_longest(whole, parts):
        assert {key: one[key] for key in ("saved", "lr", "random")} == {
            key: other[key] for key in ("saved", "lr", "random")
        }


def test_a_world_of_another_size_draws_numbers_of_its_own(worlds: Worlds, tmp_path: Path) -> None:
    """They differ on all ranks and from those of before, and are the same whenever it restores.

    No rank warns of it: nothing in the script is to be changed.
    """
    root = str(tmp_path)
    saved = worlds.run(kind="ddp", world=2, root=root, steps=1)
    drawn = []
    for seed in (7, 8):
        found = worlds.run(kind="ddp", world=3, root=root, steps=0, seed=seed)
        assert [note for rank in found for note in rank["notes"] if "random" in note] == []
        drawn.append([rank["random"] for rank in found])
    assert drawn[0] == drawn[1]
    assert len({str(numbers) for numbers in (*drawn[0], *(rank["random"] for rank in saved))}) == 5
    (alone,) = worlds.run(kind="plain", world=1, root=root, steps=0)
    assert alone["random"] not in drawn[0]


def test_what_each_rank_had_is_its_own_again_or_dealt_out_anew(
    worlds: Worlds, tmp_path: Path
) -> None:
    """In an equally large world each rank's own; in another one what `reshard` makes of all."""
    root = str(tmp_path)
    worlds.run(kind="ddp", world=3, root=root, steps=1, takes=True)
    same = worlds.run(kind="ddp", world=3, root=root, steps=0, takes=True)
    assert [rank["taken"] for rank in same] == [list(range(n, n + 10)) for n in (0, 10, 20)]
    fewer = worlds.run(kind="ddp", world=2, root=root, steps=0, takes=True)
    assert [rank["taken"] for rank in fewer] == [list(range(0, 30, 2)), list(range(1, 30, 2))]


def test_every_generator_is_reseeded() -> None:
    """torch's, Python's and numpy's: what they draw follows from rank, world and what was saved."""
    import random

    import numpy as np
    import torch

    from holdfast.flash.trainer.rng import Rng

    def draws(state: dict[str, Any]) -> list[Any]:
        rng = Rng()
        before = rng.state_dict()
        rng.load_state_dict(state)
        found = [torch.rand(1).item(), random.random(), np.random.rand()]  # noqa: NPY002
        rng.load_state_dict(before)
        return found

    saved = [Rng().state_dict()]
    torch.rand(1)
    other = [Rng().state_dict()]
    cases = [(saved, 0, 2), (saved, 1, 2), (saved, 0, 3), (other, 0, 2)]
    found = [draws(Rng().reshard(*case)) for case in cases]
    assert found == [draws(Rng().reshard(*case)) for case in cases]
    for kind in zip(*found, draws(saved[0]), strict=True):
        assert len(set(kind)) == 5


@pytest.mark.extended(
    "every step of an overlapped copy is compared in another test",
    held_by=["flash/process/test_overlap.py::test_every_step_is_saved_as_it_was"],
)
def test_an_overlapped_copy_saves_what_the_step_left(worlds: Worlds, tmp_path: Path) -> None:
    """With forward and backward running beside the copy, what is loaded is what was saved."""
    root = str(tmp_path / "ck")
    for step in (4, 8):
        (saved, *_) = worlds.run(kind="fsdp", world=2, root=root, steps=4, overlap=True)
        (loaded, *_) = worlds.run(kind="ddp", world=2, root=root, steps=0, seed=3)
        assert (loaded["start"], loaded["loaded"]) == (step, saved["saved"])


def test_a_rank_saves_alone_and_after_an_evaluation(worlds: Worlds, tmp_path: Path) -> None:
    """No save asks another rank; FSDP2's gathered parameters are never what is saved."""
    root = str(tmp_path / "ck")
    (saved, *_) = worlds.run(kind="fsdp", world=2, root=root, steps=2, evaluate=True, lonely=True)
    (loaded, *_) = worlds.run(kind="plain", world=1, root=root, steps=0, seed=3)
    assert (loaded["start"], loaded["loaded"]) == (2, saved["saved"])


@pytest.mark.parametrize(
    ("kind", "misfit", "text"),
    usual(
        [
            ("ddp", "more", "extra.odd is not in the"),
            ("fsdp", "more", "extra.odd is not in the"),
            ("ddp", "picky", "extra.odd: Picky refused"),
            ("fsdp", "picky", "extra.odd: Picky refused"),
        ],
        ("ddp", "more", "extra.odd is not in the"),
        ("fsdp", "picky", "extra.odd: Picky refused"),
        more=OTHERS,
    ),
)
def test_what_one_rank_refuses_no_rank_loads(
    worlds: Worlds, tmp_path: Path, kind: str, misfit: str, text: str
) -> None:
    """The others are told who refused; no tensor changes, and the step is there as before."""
    root, save = str(tmp_path), {"steps": 1, "kind": kind}
    before = worlds.run(world=3, root=str(tmp_path / "none"), **save | {"steps": 0, "seed": 5})
    odd = {"misfit": "tame"} if misfit == "picky" else {}
    worlds.run(world=2, root=root, **save, **odd)
    found = worlds.run(world=3, root=root, **save, misfit=misfit, seed=5)
    assert text in found[2]["refused"]
    others = {rank["refused"] for rank in found[:2]}
    assert others == {"rank 2 refused what was to be restored, so no rank takes it"}
    assert [rank["weights"] for rank in found] == [rank["weights"] for rank in before]
    assert not any("saved" in rank for rank in found)
    assert [rank["start"] for rank in worlds.run(world=1, root=root, **save, **odd)] == [1]


def test_a_world_that_one_rank_has_not_loaded_saves_no_step(worlds: Worlds, tmp_path: Path) -> None:
    """Without a process group the others hear of no refusal: what they save is never complete."""
    with Keeping(tmp_path) as keeping:
        here = {"kind": "plain", "world": 2, "root": str(tmp_path / "ck"), "arena": keeping.path}
        (saved, _) = worlds.run(steps=1, round=1, **here)
        half = worlds.run(
            steps=2, durable=False, round=2, misfit="more", die=True, may_fail=True, **here
        )
        assert "extra.odd is not in the checkpoint" in half[1]["refused"]
        assert (half[0]["start"], half[0]["saved"] != saved["saved"]) == (1, True)
        again = worlds.run(steps=0, round=3, seed=7, **here)
    assert [(rank["start"], rank["loaded"]) for rank in again] == [(1, saved["saved"])] * 2


def test_plain_dcp_loads_what_meshes_saved_onto_others(worlds: Worlds, tmp_path: Path) -> None:
    """Without Holdfast: columns, rows × columns, FSDP2 over TP, onto fewer or more ranks, exact."""
    cells = [("columns", 3, "fsdp", 2), ("grid", 4, "columns", 3), ("fsdp-tp", 4, "plain", 1)]
    wrong = []
    for kind, count, other, size in cells:
        root = str(tmp_path / kind)
        (saved, *_) = worlds.run(kind=kind, world=count, root=root, steps=2)
        answers = worlds.run(kind=other, world=size, root=root, stock=2, seed=7)
        pair = f"{kind} {count} → {other} {size}"
        wrong += _wrong(pair, answers, weights=saved["saved weights"])
    assert wrong == []


def test_a_save_of_an_unchanged_layout_costs_a_copy(worlds: Worlds, tmp_path: Path) -> None:
    """Of 20 more: no plan, no tensor of the state pickled or copied elsewhere, no collective."""
    found = worlds.run(kind="fsdp", world=2, root=str(tmp_path), steps=1, count=20)
    for rank in found:
        counts = rank["counted"]
        assert (counts["plans"], counts["collectives"], counts["a barrier"] > 0) == (0, 0, True)
        assert counts["pickled"] < 16_384, counts  # the random generators' states
        assert counts["made"] < 16_384, counts
        assert counts["peak"] < 262_144, counts


@pytest.mark.extended(
    "the matrix of worlds has meshes of both kinds",
    held_by=[
        "flash/process/test_matrix.py::test_from_storage_every_world_loads_what_any_other_saved"
    ],
)
def test_tensor_parallel_and_two_dimensional_meshes_are_reshaped(
    worlds: Worlds, tmp_path: Path
) -> None:
    """Columns, rows × columns, replicas of rows, FSDP2 over TP: each to another kind, exact."""
    kinds = [("columns", 3), ("grid", 4), ("fsdp-tp", 4), ("hybrid", 4), ("plain", 1)]
    wrong = []
    for (kind, count), (other, size) in itertools.pairwise([*kinds, kinds[1]]):
        root = str(tmp_path / kind)
        (saved, *_) = worlds.run(kind=kind, world=count, root=root, steps=2)
        answers = worlds.run(kind=other, world=size, root=root, steps=0, seed=7)
        pair = f"{kind} {count} → {other} {size}"
        wrong += _wrong(pair, answers, start=2, loaded=saved["saved"])
    assert wrong == []


@pytest.mark.parametrize(
    "counts", [pytest.param((4, 3, 1), marks=OTHERS), (1, 3, 4)], ids=["4 3 1", "1 3 4"]
)
def test_shapes_that_no_world_divides_go_from_one_world_to_the_next(
    worlds: Worlds, tmp_path: Path, counts: tuple[int, ...]
) -> None:
    """FSDP2 of fewer rows than ranks, one element, no rows, 0-dim buffers: each world trains on."""
    before = None
    for number, count in enumerate(counts):
        answers = worlds.run(
            job="odd shapes", kind="fsdp", world=count, root=str(tmp_path), seed=number
        )
        assert {answer["start"] for answer in answers} == {2 * number}
        assert {answer["count"] for answer in answers} == {2 * number + 2}
        if before is not None:
            assert {answer["loaded"] for answer in answers} == {before}
        (before,) = {answer["saved"] for answer in answers}
