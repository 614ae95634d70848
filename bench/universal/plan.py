"""Plan of a run: the states that are saved, and the worlds of each in their order; runs a world."""

from __future__ import annotations

import json
import random
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from bench.harness import launch

LIMIT_SECONDS: Final = 900.0
"""For one world, s."""
_HERE: Final = Path(__file__).parent
RANKS: Final = 4
"""That save."""


@dataclass(frozen=True, slots=True, kw_only=True)
class World:
    """One world: the script that its ranks run, and its restarts."""

    script: Path
    ranks: int
    options: Mapping[str, Any]
    preload: str
    """The module that imports what the script needs, before its ranks are forked."""
    restarts: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class State:
    """One saved state."""

    name: str
    script: Path
    preload: str
    own: Mapping[str, int]
    """Options that give the world that saves."""
    loads: tuple[str, ...]
    """Ways to load it in a world of the same kind."""
    others: tuple[tuple[int, Mapping[str, int]], ...]
    """Worlds that load it too: ranks, options."""

    def world(
        self, act: str, ranks: int = RANKS, own: Mapping[str, int] | None = None, **more: Any
    ) -> World:
        """Return a world for an act: the one that saved, or one of other ranks and options."""
        options = {**(own or self.own), "act": act, "state": self.name, **more}
        return World(script=self.script, ranks=ranks, options=options, preload=self.preload)


def zero(stage: int) -> State:
    """Return the state of a DeepSpeed engine."""
    own = {"stage": stage}
    return State(
        name=f"ZeRO-{stage}, {RANKS} ranks",
        script=_HERE / "zero_rank.py",
        preload="deepspeed",
        own=own,
        loads=("flash", "torch", "native"),
        others=((2, own), (3, own), (2, {"stage": 2 if stage == 3 else 3})),
    )


def megatron(tensor: int) -> State:
    """Return the state of a Megatron training."""
    return State(
        name=f"Megatron, tensor {tensor} × data {RANKS // tensor}",
        script=_HERE / "megatron_rank.py",
        preload="megatron_worlds.preloaded",
        own={"tensor": tensor},
        loads=("flash", "torch", "buckets", "reshardable"),
        others=((RANKS, {"tensor": 3 - tensor}), (2, {"tensor": tensor})),
    )


def worlds(state: State, turns: int, seed: int) -> Iterator[World]:
    """Yield the worlds of a state in their order."""
    yield state.world("save")
    for turn in range(turns):
        for way in _shuffled(state.loads, f"{seed} {state.name} {turn}"):
            yield state.world("load", way=way, turn=turn)
    yield replace(state.world("restart"), restarts=2 * turns)
    for ranks, own in state.others:
        yield state.world("reshape", ranks, own)
        # DeepSpeed's universal files of one of these stages do not load in the other.
        if state.script.name == "zero_rank.py" and own == state.own:
            yield state.world("universal", ranks, own)


def _shuffled(names: Sequence[str], seed: str) -> list[str]:
    return random.Random(seed).sample(names, len(names))


def run(world: World, options: Mapping[str, Any], log: Path) -> list[dict[str, Any]]:
    """Run a world on one node to its end; return the lines of JSON that it has logged.

    Raises:
        WorldError: the world failed or took longer than `LIMIT_SECONDS`.
    """
    log.unlink(missing_ok=True)
    command = [sys.executable, *launch.LAUNCHERS[launch.HOLDFAST]]
    command += [f"--nproc-per-node={world.ranks}", f"--max-restarts={world.restarts}"]
    command += [str(world.script), json.dumps({"lines": str(log), **world.options, **options})]
    variables = launch.variables(
        "tests/support",
        DS_ACCELERATOR="cpu",
        TOKENIZERS_PARALLELISM="false",
        # The zygote imports torch before a script can set it; of no use to what is measured.
        TORCHDYNAMO_DISABLE="1",
        HOLDFAST_PRELOAD=world.preload,
    )
    launch.said(command, f"{world.script.name} {world.options}", LIMIT_SECONDS, variables)
    return [json.loads(line) for line in log.read_text().splitlines()]
