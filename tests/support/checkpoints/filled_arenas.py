"""Arenas of two ranks as a keeper has them, filled with steps, and left as by a SIGKILL."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from checkpoints.sample_shards import sample_shard
from holdfast.flash.memory.arena import RankArena
from holdfast.flash.memory.memory_budget import Room
from holdfast.flash.memory.shard_table import encode
from holdfast.flash.memory.slots import SlotState, Version
from holdfast.flash.server.arena_store import ArenaStore
from holdfast.flash.server.protocol import Layout, TrainerHello
from holdfast.flash.storage.writer import hashed
from holdfast_wire.messages.spec import CheckpointPolicy

PLENTY = Room(available=2**40, source="a test")


@contextmanager
def memory_folder(name: str) -> Iterator[Path]:
    """Make a directory in memory; on a disk a test would wait for it."""
    path = Path("/dev", "shm") / f"holdfast-test-{name}-{os.getpid()}"
    path.mkdir()
    yield path
    for left in path.iterdir():
        left.unlink()
    path.rmdir()


def layout(rank: int = 0, world: int = 2, room: int = 4096) -> Layout:
    """Return what a trainer asks an arena for with."""
    table = sample_shard(rank, world, random.Random(0))[0].table
    return Layout(table=encode(table).decode(), bytes_room=room, slots=3)


def grant(keeper: ArenaStore, rank: int, asked: Layout) -> RankArena:
    """Return the rank's arena for a layout: the existing one, or a new one."""
    found = keeper.find_arena(rank, asked)
    if found is None:
        keeper.held.add(found := keeper.make(rank, asked))
    return found


def save(keeper: ArenaStore, rank: int, step: int, world: int = 2, *, hash_it: bool = True) -> None:
    """Do what a trainer and its agent do for one step."""
    arena = grant(keeper, rank, layout(rank, world)).arena
    slot = next(slot for slot in arena.slots if slot.state is SlotState.EMPTY)
    slot.begin_write(Version(1, step))
    slot.image[:] = bytes([step]) * len(slot.image)
    slot.commit([step])
    job = keeper.saved(rank, Version(1, step), work=hash_it)
    if job is not None:
        hashed(job)
        keeper.done(job)


def fill(keeper: ArenaStore, steps: Sequence[int], *, hash_it: bool = True) -> None:
    """Save the steps of both ranks."""
    for rank in (0, 1):
        keeper.join(
            TrainerHello(
                rank=rank, world=2, kept=2, lineage=1, root="", policy=CheckpointPolicy(keep_last=1)
            )
        )
    for step in steps:
        for rank in (0, 1):
            save(keeper, rank, step, hash_it=hash_it)


def let_go(keeper: ArenaStore) -> None:
    """Close what a SIGKILL closes of the arenas: descriptors and mappings, and nothing else."""
    for arenas in keeper.held.by_rank.values():
        for held in arenas:
            held.arena.close()
            os.close(held.fd)
