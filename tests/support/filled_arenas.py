"""Arenas of two ranks as a keeper has them, filled with steps, and left as by a SIGKILL."""

from __future__ import annotations

import os
import random
from collections.abc import Sequence

from holdfast.flash.decide.room import Room
from holdfast.flash.decide.slots import SlotState, Version
from holdfast.flash.keeper import Keeper
from holdfast.flash.link import Hello, Layout
from holdfast.flash.persisting import hashed
from holdfast.flash.table import encode
from sample_shards import sample_shard

PLENTY = Room(available=2**40, source="a test")


def layout(rank: int = 0, world: int = 2, room: int = 4096) -> Layout:
    """Return what a trainer asks an arena for with."""
    table = sample_shard(rank, world, random.Random(0))[0].table
    return Layout(table=encode(table).decode(), bytes_room=room, slots=3)


def save(keeper: Keeper, rank: int, step: int, *, hash_it: bool = True) -> None:
    """Do what a trainer and its agent do for one step."""
    arena = keeper.grant(rank, layout(rank)).arena
    slot = next(slot for slot in arena.slots if slot.state is SlotState.EMPTY)
    slot.begin_write(Version(1, step), rank=rank, world=2, layout=arena.layout)
    slot.image[:] = bytes([step]) * len(slot.image)
    slot.commit([step])
    job = keeper.saved(rank, Version(1, step), durable=False, work=hash_it)
    if job is not None:
        hashed(job)
        keeper.done(job)


def fill(keeper: Keeper, steps: Sequence[int], *, hash_it: bool = True) -> None:
    """Save the steps of both ranks."""
    for rank in (0, 1):
        keeper.join(
            Hello(rank=rank, world=2, kept=2, lineage=1, root="", keep_last=1, keep_every=0)
        )
    for step in steps:
        for rank in (0, 1):
            save(keeper, rank, step, hash_it=hash_it)


def let_go(keeper: Keeper) -> None:
    """Close what a SIGKILL closes of the arenas: descriptors and mappings, and nothing else."""
    for arenas in keeper._held.values():
        for held in arenas:
            held.arena.close()
            os.close(held.fd)
