"""The page of the universal benchmark judges what was measured; its tools count and copy."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from bench.harness import machine
from bench.universal import results as r
from bench.universal.__main__ import BENCH, main
from bench.universal.page import judge, page_of
from bench.universal.plan import megatron, worlds, zero
from bench.universal.results import Timed

ABOUT = machine.about("record", {}) | {"deepspeed": "0.19", "megatron": "0.16", "seed": 1}
MEGATRON = megatron(1).name
ZERO = zero(2).name


def _turns(
    state: str, act: str, seconds: dict[str, float], collectives: int = 0
) -> Iterator[Timed]:
    """Yield three turns of systems that `results` names."""
    for turn in range(3):
        for system, one in seconds.items():
            yield Timed(
                state=state,
                act=act,
                system=getattr(r, system),
                turn=turn,
                seconds=one * (1 + turn),
                mib=64.0,
                collectives=collectives,
                load=0.5,
            )


@pytest.mark.parametrize(
    ("act", "state", "slow", "kept"),
    [
        (r.SAVE, MEGATRON, {"FLASH": 1.1, "COPY": 1.0}, True),
        (r.SAVE, MEGATRON, {"FLASH": 1.2, "COPY": 1.0}, False),
        (r.SAVE, MEGATRON, {"FLASH": 1.0, "GATHER": 20.0}, True),
        (r.SAVE, MEGATRON, {"FLASH": 1.0, "GATHER": 19.0}, False),
        (r.LOAD, MEGATRON, {"FLASH": 1.0, "TORCH": 3.0}, True),
        (r.LOAD, MEGATRON, {"FLASH": 1.0, "TORCH": 2.9}, False),
        (r.RESTART, MEGATRON, {"FLASH": 1.35, "COPY": 1.0}, True),
        (r.RESTART, MEGATRON, {"FLASH": 1.4, "COPY": 1.0}, False),
        (f"{r.RESHAPE}ZeRO-2, 2 ranks", ZERO, {"FLASH": 1.0, "UNIVERSAL": 3.0}, True),
        (f"{r.RESHAPE}ZeRO-2, 2 ranks", ZERO, {"FLASH": 1.0, "UNIVERSAL": 2.9}, False),
    ],
)
def test_each_promise_is_held_against_the_same_turn(
    act: str, state: str, slow: dict[str, float], *, kept: bool
) -> None:
    """A machine that slows down from turn to turn changes no ratio."""
    found = [one for one in judge(list(_turns(state, act, slow))) if one.promised != "0"]
    assert [one.kept for one in found] == [kept]


def test_a_load_from_memory_is_judged_with_megatrons_gather_and_without() -> None:
    """Megatron gathers the weights in it, which no copy of the shard does."""
    seconds = {"FLASH": 3.3, "SYNC": 2.0, "COPY": 1.0}
    found = judge(list(_turns(MEGATRON, r.RESTART, seconds)))
    assert [(one.kept, one.reached[:4]) for one in found] == [(False, "3.30"), (True, "1.30")]


@pytest.mark.parametrize("collectives", [0, 1])
def test_one_collective_of_a_save_breaks_a_promise(collectives: int) -> None:
    """They are counted in each save, on the rank with most."""
    (found,) = judge(list(_turns(MEGATRON, r.SAVE, {"FLASH": 1.0}, collectives)))
    assert found.kept == (not collectives)
    assert found.reached == f"{3 * collectives} in 3 saves"


def test_the_page_has_each_call_beside_holdfasts() -> None:
    """A row has median and range in seconds, and of the ratios."""
    text = page_of(ABOUT, list(_turns(MEGATRON, r.SAVE, {"FLASH": 0.1, "TORCH": 0.4}, 2)))
    assert f"| save | {r.TORCH} | 3 | 0.800 (0.400–1.200) | 4.00 (4.00–4.00) | 2 |" in text
    assert "DeepSpeed 0.19, megatron-core 0.16. Seed 1. Load average 0.5–0.5." in text


def test_the_ways_of_a_turn_are_drawn_by_the_seed() -> None:
    """Each turn has all ways; the same seed gives the same order."""
    state = megatron(2)

    def order(seed: int) -> list[str]:
        every = [world.options for world in worlds(state, turns=4, seed=seed)]
        return [one["way"] for one in every if "way" in one]

    ways = len(state.loads)
    assert order(1) == order(1) != order(2)
    for turn in range(4):
        assert sorted(order(1)[ways * turn : ways * (turn + 1)]) == sorted(state.loads)


@pytest.fixture
def alone(tmp_path: Path) -> Iterator[None]:
    """Be a world of one rank."""
    import torch.distributed as dist

    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/meet", rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.mark.train
@pytest.mark.usefixtures("alone")
def test_dcp_reads_boxes_into_their_tensors(tmp_path: Path) -> None:
    """Two boxes of one global tensor are views of a rank's memory; the rest stays unread."""
    import torch
    import torch.distributed.checkpoint as dcp

    from bench.universal.acts import targets
    from holdfast.flash.trainer.leaves import Leaves

    whole = torch.arange(24.0).view(4, 6)
    dcp.save({"model.w": whole, "model.n": torch.ones(3)}, checkpoint_id=tmp_path / "step")
    leaves, own = Leaves(), torch.zeros(8)
    leaves.add_box(("model", "w"), own[:2].view(1, 2), (4, 6), (0, 4))
    leaves.add_box(("model", "w"), own[2:].view(1, 6), (4, 6), (1, 0))
    dcp.load(targets(leaves.tensors), checkpoint_id=tmp_path / "step")
    assert own.tolist() == list(range(4, 12))


@pytest.mark.train
@pytest.mark.usefixtures("alone")
def test_collectives_are_counted_however_they_are_called() -> None:
    """A name that was imported before and the module's function count; nothing else does."""
    import torch
    import torch.distributed as dist
    from torch.distributed import all_reduce

    from bench.universal.rank import counted

    with counted() as count:
        assert not count()
        all_reduce(torch.ones(1))
        assert count() == 1
        dist.barrier()
        assert count() == 2
    with counted() as count:
        assert not count()


@pytest.mark.extended(
    "runs a benchmark for real; the parts of the product that it drives have tests of their own",
    held_by=[
        "bench/test_universal_page.py::test_collectives_are_counted_however_they_are_called",
        "integrations/deepspeed/test_one_rank_alone.py::test_a_rank_has_its_own_share_and_calls_no_collective",
        "integrations/deepspeed/test_stages_and_worlds.py::test_every_stage_and_world_loads_every_other_exactly",
        "integrations/megatron/test_reshapes.py::test_any_layout_goes_on_from_any_other",
    ],
)
@pytest.mark.train
@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("words", "systems"),
    [
        (
            ("--stages", "--tensor", "1"),
            {r.GATHERED, r.GATHER, r.BUCKETS, r.RESHARDABLE, r.SYNC},
        ),
        (("--tensor", "--stages", "2"), {r.ENGINE, r.UNIVERSAL}),
    ],
)
def test_all_ways_of_one_state_are_measured(
    words: tuple[str, ...], systems: set[str], tmp_path: Path
) -> None:
    """Real ranks save, load, restart and reshape; every load ends with the saved bytes."""
    out = tmp_path / "universal.jsonl"
    small = ["--turns=1", "--width=64", "--layers=7", f"--out={out}"]
    assert main([*words, *small]) == 0
    about, results = BENCH.read(out.read_text().splitlines())
    assert about["seed"] == 1
    shared = {r.FLASH, r.STORED, r.COPY, r.TORCH, r.WEIGHTS, r.DCP}
    assert {one.system for one in results} == shared | systems
    assert all(one.seconds > 0 and one.mib > 0 for one in results)
    saves = [one for one in results if one.act == r.SAVE]
    assert {one.system for one in saves if one.collectives} >= systems - {r.UNIVERSAL, r.SYNC}
    assert not any(one.collectives for one in saves if one.system in {r.FLASH, r.STORED})
