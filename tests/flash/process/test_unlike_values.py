"""Ranks that have other values under equal names: refused by name at the commit, never mixed."""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from checkpoints.forked_ranks import World, run
from checkpoints.led_nodes import Node, announced, grant_of, plan, served

pytestmark = [pytest.mark.train, pytest.mark.timeout(600)]

SCRIPT = """
import logging, warnings
import torch, torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
import holdfast
from holdfast.flash.dcp import async_save, close
from holdfast.flash.memory.shard_table import whole
from holdfast.flash.trainer import copier

warnings.simplefilter("ignore")
logging.getLogger("holdfast").setLevel("ERROR")  # that there is no agent


def layers(count=3):
    return nn.Sequential(*[nn.Linear(4, 4) for _ in range(count)])


def step(model, optimizer, rank):
    optimizer.zero_grad()
    model(torch.ones(2, 4) * (rank + 1)).square().sum().backward()
    optimizer.step()


def attempt(flash, number):
    try:
        flash.save(number)
        flash.wait(number, timeout_s=60)
        print(f"{number} is durable")
    except holdfast.CheckpointError as error:
        print(f"{number} is refused: {error}")


def stages(rank, world, root):
    torch.manual_seed(rank)
    model = layers()
    with holdfast.Checkpointer(root, model=model) as flash:
        flash.load()
        attempt(flash, 1)
        attempt(flash, 2)  # again, for nothing was compared yet
        for parameter in model.parameters():
            dist.broadcast(parameter.data, 0)
        attempt(flash, 3)


def stages_of_one_seed(rank, world, root):
    torch.manual_seed(0)
    model = layers()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5)
    with holdfast.Checkpointer(root, model=model, optimizer=optimizer) as flash:
        flash.load()
        step(model, optimizer, rank)
        attempt(flash, 1)


def extras(rank, world, root):
    torch.manual_seed(0)
    extra = {"k": {"epoch": [3, rank]}, "text": f"of {rank}", "same": {"a": 1.5, "b": None}}
    own = {"mine": {"epoch": rank}}
    with holdfast.Checkpointer(root, model=layers(), extra=extra, per_rank=own) as flash:
        flash.load()
        attempt(flash, 1)


def count_sketches():
    calls = []
    sketch = copier.Sketcher.sketch
    copier.Sketcher.sketch = lambda *given: calls.append(1) or sketch(*given)
    return calls


def promoted(rank, world, root):
    calls = count_sketches()
    torch.manual_seed(rank)
    model = layers()
    with holdfast.Checkpointer(root, model=model) as flash:
        flash.load()
        flash.save(1, durable=False)
        attempt(flash, 1)
        attempt(flash, 2)
        flash.save(3, durable=False)
        attempt(flash, 3)
        for parameter in model.parameters():
            dist.broadcast(parameter.data, 0)
        flash.save(4, durable=False)
        attempt(flash, 4)
        flash.save(5, durable=False)
        attempt(flash, 6)
    print(f"sketched {len(calls)} times")


def one_arena(rank, world, root):
    asked = []
    ask = copier.Copier.__init__
    copier.Copier.__init__ = lambda self, plan, leaves, arena, **others: (
        asked.append(arena), ask(self, plan, leaves, arena, **others)
    )[1]
    torch.manual_seed(0)
    model = nn.ParameterList(nn.Parameter(torch.ones(2)) for _ in range(460))
    optimizer = torch.optim.AdamW(model.parameters())
    sum(one.sum() for one in model).backward()
    optimizer.step()
    with holdfast.Checkpointer(root, model=model, optimizer=optimizer) as flash:
        flash.load()
        attempt(flash, 1)
        print(f"{len(set(asked))} arenas")
    asked.clear()
    state = {f"t{number}": torch.ones(20_000) for number in range(2000)}
    async_save(state, checkpoint_id=f"{root}/dcp").result()
    print(f"{len(set(asked))} arenas")
    close()


def alike(rank, world, root):
    calls = count_sketches()
    torch.manual_seed(0)
    inner = layers()
    inner.register_buffer("large", torch.full((200, 200), float(rank)))
    inner.register_buffer("cold", torch.tensor(float("nan")))
    inner.low = nn.Parameter(torch.linspace(-1, 1, 90, dtype=torch.bfloat16), requires_grad=False)
    model = DDP(inner)
    optimizer = torch.optim.AdamW(model.parameters())
    step(model, optimizer, rank)
    inner.large.fill_(rank)  # as a forward pass leaves it, whatever DDP gave before
    with torch.no_grad():  # as kernels of unequal machines round
        for number, parameter in enumerate(inner.parameters()):
            eps = torch.finfo(parameter.dtype).eps
            parameter.mul_(1 + 4 * rank * eps * torch.rand_like(parameter))
    order = [("b", 2), ("a", 1)][:: 1 - 2 * rank]
    extra = {"sets": {str(rank), "x"}, "order": dict(order), "loss": 1 + rank * 1e-7, "none": None}
    extra.pop("sets")
    extra["nan"], extra["tensor"] = float("nan"), torch.arange(9.0)
    # Equal, but not the same object twice on both ranks: pickled, the bytes differ.
    extra["text"] = ["a b", "a b"] if rank else ["a b", " ".join(["a", "b"])]
    with holdfast.Checkpointer(root, model=model, optimizer=optimizer, extra=extra) as flash:
        flash.load()
        for number in (1, 2, 3):
            attempt(flash, number)
    print(f"sketched {len(calls)} times")
    inner.large.fill_(7)
    with holdfast.Checkpointer(root, model=model, optimizer=optimizer, extra=extra) as flash:
        print(f"loaded {flash.load()} with {inner.large[0, 0].item()}")


def only_rank_0(rank, world, root, load=True):
    torch.manual_seed(0)
    extra = {f"k{i}": [i] for i in range(4)} if rank == 0 else {}
    extra |= {} if load else {f"odd{i}": i for i in range(8 * (1 - rank))}
    with holdfast.Checkpointer(root, model=layers(), extra=extra) as flash:
        if load:
            flash.load()
        attempt(flash, 1)
        table = flash._preparer.copier.arena.table
        print(f"alike: {table.alike}; whole: {whole([table])}")
    if load:
        extra = dict.fromkeys(extra)
        with holdfast.Checkpointer(root, model=layers(), extra=extra) as flash:
            print(f"loaded {flash.load()}: {extra}")
"""


def _print(folder: Path, *worlds: World) -> list[list[str]]:
    return run(folder, SCRIPT, worlds)


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[str]]:
    """Run the worlds without an agent. Return the output of each world's ranks."""
    folder = tmp_path_factory.mktemp("unlike")
    first = ("stages", "stages_of_one_seed", "extras", "promoted")
    names = (*first, "one_arena", "alike", "only_rank_0")
    worlds = [World(name, 2, {"root": str(folder / name)}) for name in names]
    return dict(zip(names, _print(folder, *worlds), strict=True))


def test_modules_of_equal_names_and_other_values_are_refused_by_name(
    alone: dict[str, list[str]],
) -> None:
    """On all ranks, with both ranks and the remedy; at each save until they are equal."""
    for rank, text in enumerate(alone["stages"]):
        first, second, third = text.splitlines()
        assert ("rank 0 refused the commit: model.0.bias" in first) == (rank == 1), text
        for number, line in enumerate((first, second), start=1):
            assert f"{number} is refused" in line, text
            assert "model.0.bias on rank 0 is another than on rank 1" in line, text
            assert "and 3 more" in line, text
            assert "per_rank" in line, text
            assert "could not write" not in line, text
        assert third == "3 is durable", text


def test_modules_that_began_equal_and_were_trained_apart_are_refused(
    alone: dict[str, list[str]],
) -> None:
    """After one small step: by what the optimizer keeps of their gradients."""
    for text in alone["stages_of_one_seed"]:
        assert "1 is refused" in text, text
        assert "exp_avg" in text, text


def test_an_extra_that_differs_between_ranks_is_refused_by_name(
    alone: dict[str, list[str]],
) -> None:
    """Only what differs is named, and nothing of `per_rank`."""
    for text in alone["extras"]:
        assert "extra.k on rank 0 is another than on rank 1" in text, text
        assert "extra.text on rank 0 is another than on rank 1" in text, text
        assert "same" not in text, text
        assert "mine" not in text, text


def test_a_step_that_only_memory_had_is_compared_when_it_is_stored(
    alone: dict[str, list[str]],
) -> None:
    """Also after a refused step; no more sketches are made once a step of them is durable."""
    for text in alone["promoted"]:
        *refused, stored, last, sketched = text.splitlines()
        for number, line in enumerate(refused, start=1):
            assert f"{number} is refused" in line, text
            assert "model.0.bias on rank 0 is another than on rank 1" in line, text
        assert len(refused) == 3, text
        assert (stored, last) == ("4 is durable", "6 is durable"), text
        assert sketched == "sketched 4 times", text


def test_the_first_arena_has_room_for_the_sketches(alone: dict[str, list[str]]) -> None:
    """A second one, beside the first, may be more than the node has; also with `async_save`."""
    for text in alone["one_arena"]:
        assert text.splitlines() == ["1 is durable", "1 arenas", "1 arenas"]


def test_what_a_legal_run_may_differ_in_is_no_difference(alone: dict[str, list[str]]) -> None:
    """Rounding, the order of a dict, NaN, buffers under DDP; ranks are compared once, not later.

    A large buffer that DDP broadcasts is rank 0's on all ranks after a load.
    """
    for text in alone["alike"]:
        *saved, sketched, loaded = text.splitlines()
        assert saved == [f"{number} is durable" for number in (1, 2, 3)], text
        assert sketched == "sketched 1 times", text
        assert loaded == "loaded 3 with 0.0", text


def test_an_extra_of_rank_0_alone_comes_back_there(alone: dict[str, list[str]]) -> None:
    """The table says that ranks are not alike, so that none of them passes for the whole."""
    saved = "1 is durable\nalike: False; whole: False\n"
    first, second = alone["only_rank_0"]
    assert first == f"{saved}loaded 1: {{'k0': [0], 'k1': [1], 'k2': [2], 'k3': [3]}}\n"
    assert second == f"{saved}loaded 1: {{}}\n"


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    """A node under a master that grants every commit and has every world start from nothing."""
    with served(tmp_path) as node:
        over = threading.Event()
        master = threading.Thread(target=_lead, args=(node, over))
        master.start()
        yield node
        over.set()
        master.join()


def _lead(node: Node, over: threading.Event) -> None:
    told = node.master.told
    while not over.wait(0.01):
        for name in ("asks", "written", "committed"):
            try:
                message, number = told.setdefault(name, queue.Queue()).get_nowait()
            except queue.Empty:
                continue
            if name == "asks":
                node.word(plan(go=True), number)
            elif name == "written":
                node.word(grant_of(message, f"{message.attempt}e1c{message.version.step}"))
            else:
                node.word(announced(message.version, message.error))


def test_unlike_ranks_under_an_agent_are_refused_or_exact(node: Node, tmp_path: Path) -> None:
    """A commit that a master grants says the same: values by name, what some ranks lack is kept.

    Without a load no rank knows what others have: what nobody stores is refused by name then.
    """
    arena = {"HOLDFAST_ARENA": node.path}
    worlds = [
        World(name, 2, {"root": str(tmp_path / name), **given}, {**arena, "HOLDFAST_ROUND": number})
        for name, number, given in (
            ("stages", "1", {}),
            ("extras", "2", {}),
            ("only_rank_0", "3", {"load": False}),
        )
    ]
    stages, extras, without = _print(tmp_path, *worlds)
    for text in stages:
        assert "model.0.bias on rank 0 is another than on rank 1" in text, text
        assert text.splitlines()[-1] == "3 is durable", text
    for text in extras:
        assert "extra.k on rank 0 is another than on rank 1" in text, text
    for text in without:
        assert "1 is refused" in text, text
        assert "on ranks [0] only, and none of them stores it" in text, text
        assert "load()" in text, text
