"""Plan of a run: the states that are saved, and the worlds of each in their order; runs a world."""

from __future__ import annotations

import json
import random
import sys
from collections.abc import Iterator, Sequence
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
    words: tuple[str, ...]
    preload: str
    """The module that imports what the script needs, before its ranks are forked."""
    restarts: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class State:
    """One saved state."""

    name: str
    script: Path
    preload: str
    words: tuple[str, ...]
    """Give the world that saves."""
    loads: tuple[str, ...]
    """Ways to load it in a world of the same kind."""
    others: tuple[tuple[int, tuple[str, ...]], ...]
    """Worlds that load it too: ranks, words."""

    def world(self, act: str, *words: str, ranks: int = RANKS, own: Sequence[str] = ()) -> World:
        """Return a world for an act: the one that saved, or one of other ranks and `own` words."""
        said = (*(own or self.words), "--act", act, "--state", self.name, *words)
        return World(script=self.script, ranks=ranks, words=said, preload=self.preload)


def zero(stage: int) -> State:
    """Return the state of a DeepSpeed engine."""

    def words(number: int) -> tuple[str, ...]:
        return ("--stage", str(number))

    return State(
        name=f"ZeRO-{stage}, {RANKS} ranks",
        script=_HERE / "zero_rank.py",
        preload="deepspeed",
        words=words(stage),
        loads=("flash", "torch", "native"),
        others=((2, words(stage)), (3, words(stage)), (2, words(2 if stage == 3 else 3))),
    )


def megatron(tensor: int) -> State:
    """Return the state of a Megatron training."""

    def words(number: int) -> tuple[str, ...]:
        return ("--tensor", str(number))

    return State(
        name=f"Megatron, tensor {tensor} × data {RANKS // tensor}",
        script=_HERE / "megatron_rank.py",
        preload="megatron_worlds.preloaded",
        words=words(tensor),
        loads=("flash", "torch", "buckets", "reshardable"),
        others=((RANKS, words(3 - tensor)), (2, words(tensor))),
    )


def worlds(state: State, turns: int, seed: int) -> Iterator[World]:
    """Yield the worlds of a state in their order."""
    yield state.world("save")
    for turn in range(turns):
        for way in _shuffled(state.loads, f"{seed} {state.name} {turn}"):
            yield state.world("load", "--way", way, "--turn", str(turn))
    yield replace(state.world("restart"), restarts=2 * turns)
    for ranks, words in state.others:
        yield state.world("reshape", ranks=ranks, own=words)
        # DeepSpeed's universal files of one of these stages do not load in the other.
        if state.script.name == "zero_rank.py" and words == state.words:
            yield state.world("universal", ranks=ranks, own=words)


def _shuffled(names: Sequence[str], seed: str) -> list[str]:
    return random.Random(seed).sample(names, len(names))


def run(world: World, words: Sequence[str], log: Path) -> list[dict[str, Any]]:
    """Run a world on one node to its end; return the lines of JSON that it has logged.

    Raises:
        WorldError: the world failed or took longer than `LIMIT_SECONDS`.
    """
    log.unlink(missing_ok=True)
    command = [sys.executable, *launch.LAUNCHERS[launch.HOLDFAST]]
    command += [f"--nproc-per-node={world.ranks}", f"--max-restarts={world.restarts}"]
    command += [str(world.script), "--lines", str(log), *world.words, *words]
    variables = launch.variables(
        "tests/support",
        DS_ACCELERATOR="cpu",
        TOKENIZERS_PARALLELISM="false",
        # The zygote imports torch before a script can set it; of no use to what is measured.
        TORCHDYNAMO_DISABLE="1",
        HOLDFAST_PRELOAD=world.preload,
    )
    launch.said(command, f"{world.script.name} {' '.join(world.words)}", LIMIT_SECONDS, variables)
    return [json.loads(line) for line in log.read_text().splitlines()]
