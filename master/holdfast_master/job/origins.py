"""What a round starts from: asked by its nodes, chosen, looked through by all, begun with by all.

Belongs here: the messages of a start and their order. Does not belong here: which version it is and
who reads whose memory (`decide.checkpoints`), what was said of memory and storage (`checkpoints`).

Nobody begins before every node has found its share intact: one that finds damage after others have
begun would mix two steps.
"""

from __future__ import annotations

import dataclasses

from holdfast_master.decide import checkpoints as policy
from holdfast_master.decide.checkpoints import Offer, Part
from holdfast_master.job.checkpoint_book import Book
from holdfast_master.job.desk import Desk, Warn
from holdfast_master.job.roster import Node
from holdfast_master.job.round_nodes import holders, running_with
from holdfast_master.job.wording import short
from holdfast_master.job.world import World
from holdfast_wire.messages import (
    CheckpointVersion,
    Origin,
    OriginChecked,
    PartSource,
    RestoreAsked,
)
from holdfast_wire.reasons import EventReason

_MOST_NOTES = 16
_MOST_PARTS = 8
"""Versions whose parts a node may name: more are no agent's in its senses."""


def asked(desk: Desk, node: Node, number: int, message: RestoreAsked) -> None:
    """All ranks of a node wait to be told what to start from."""
    world = running_with(desk, node, number)
    if world is None:
        return
    book = desk.checkpoints
    book.enter(number, holders(world), world.size)
    before = book.asked.get(node.rank)
    book.asked[node.rank] = message
    if before is not None and book.origin is not None and message.told is None:
        _tell(desk, node, book.origin)  # it may not have heard of it
    desk.dirty = True


def choose(desk: Desk) -> None:
    """Once every node of the world asks, choose what it starts from."""
    book, world = desk.checkpoints, desk.running()
    if world is None or world.round != book.round or book.origin is not None or not book.asked:
        return
    if any(rank not in book.asked for rank in world.places):
        return
    told = next((one.told for one in book.asked.values() if one.told is not None), None)
    if told is not None:  # an earlier master has told some of them
        if told.memory:
            book.sources = _sources(desk, _offers(desk), told.version)
        _go(desk, world, told)
        return
    if any(pending.whole for pending in book.pending.values()):
        return  # it is being committed, and would be the newest
    _choose(desk, world)


def _choose(desk: Desk, world: World) -> None:
    book, offers = desk.checkpoints, _offers(desk)
    fact = desk.state.checkpoint
    announced = fact.version if fact is not None else None
    choice = policy.origin(offers, book.damaged, announced, desk.settings.gather_ranks)
    if choice.older and fact is not None and fact.version is not None:
        lost = f"step {fact.version.step} was durable and is not to be had"
        book.notes.append(lost)
        desk.event(EventReason.CHECKPOINT_LOST, lost, Warn)
    book.reason, book.checked = choice.reason, set()
    book.sources = _sources(desk, offers, choice.version) if choice.gathered else {}
    book.origin = Origin(
        origin_id=desk.command("origin", 0),
        version=choice.version,
        memory=choice.memory,
        partial=choice.partial,
        go=choice.version is None,
        notes=tuple(book.notes[-_MOST_NOTES:]),
    )
    if book.origin.go:
        _go(desk, world, book.origin)
    else:
        _tell_all(desk, world, book.origin)


def _offers(desk: Desk) -> dict[int, Offer]:
    """What each node could start from, and lend to others."""
    return {
        rank: Offer(
            memory=frozenset(one.memory),
            stored=frozenset(one.stored) | _new(desk, one),
            parts={
                part.version: Part(
                    world_size=part.world_size,
                    ranks=frozenset(part.ranks),
                    whole=part.whole,
                    world=part.world,
                )
                for part in one.parts[:_MOST_PARTS]
                if part.version is not None
            },
            gathers=bool(_address(desk, rank)),
        )
        for rank, one in desk.checkpoints.asked.items()
    }


def _address(desk: Desk, rank: int) -> str:
    """Where other agents read a node's memory; empty: nowhere."""
    node = desk.roster.nodes.get(rank)
    hello = node.hello if node is not None else None
    return hello.peer_address if hello is not None and hello.gathers else ""


def _sources(
    desk: Desk, offers: dict[int, Offer], version: CheckpointVersion | None
) -> dict[int, tuple[PartSource, ...]]:
    """By node, whose memory it reads what it lacks of a version."""
    most = desk.settings.gather_ranks
    found = policy.sources(version, offers, most) if version is not None else None
    return {
        node: tuple(
            PartSource(node_rank=holder, address=_address(desk, holder), ranks=ranks)
            for holder, ranks in by_holder.items()
        )
        for node, by_holder in (found or {}).items()
    }


def _new(desk: Desk, said: RestoreAsked) -> frozenset[CheckpointVersion]:
    """What was committed since an agent looked at the directory."""
    fact = desk.state.checkpoint
    if fact is None or fact.version is None or not desk.checkpoints.committed_since(fact.version):
        return frozenset()
    return frozenset() if fact.version in said.stored else frozenset([fact.version])


def _tell(desk: Desk, node: Node, origin: Origin) -> None:
    world = desk.running()
    if world is not None and node.rank in world.places:
        share = list(world.places).index(node.rank)
        desk.send(node, _part(desk.checkpoints, world, origin, node.rank, share), world.round)


def _tell_all(desk: Desk, world: World, origin: Origin) -> None:
    for share, rank in enumerate(world.places):
        node = desk.roster.nodes.get(rank)
        if node is not None:
            desk.send(node, _part(desk.checkpoints, world, origin, rank, share), world.round)


def _part(book: Book, world: World, origin: Origin, rank: int, share: int) -> Origin:
    """An origin as one node is told it: its share of the files, and whose memory it reads."""
    sources = book.sources.get(rank, ())
    return dataclasses.replace(origin, share=share, shares=len(world.places), sources=sources)


def checked(desk: Desk, node: Node, number: int, message: OriginChecked) -> None:
    """A node has looked at its share of the origin."""
    world, book = running_with(desk, node, number), desk.checkpoints
    origin = book.origin
    if world is None or origin is None or origin.go or message.origin_id != origin.origin_id:
        return
    if message.error and origin.version is not None:
        text = f"step {origin.version.step} is passed over: node {node.rank}: {message.error}"
        desk.event(EventReason.CHECKPOINT_DAMAGED, text, Warn, node=node.rank)
        book.notes.append(short(text))
        book.damaged.add((origin.version, origin.memory))
        book.origin = None
        desk.dirty = True
        return
    book.checked.add(node.rank)
    if all(rank in book.checked for rank in world.places):
        _go(desk, world, dataclasses.replace(origin, go=True))


def _go(desk: Desk, world: World, origin: Origin) -> None:
    book = desk.checkpoints
    origin = dataclasses.replace(origin, go=True)
    book.origin = origin
    book.started(origin)
    _tell_all(desk, world, origin)
    if origin.version is not None:
        tier = "memory" if origin.memory else "storage"
        text = f"round {world.round} starts from step {origin.version.step} in {tier}"
        desk.event(EventReason.CHECKPOINT_RESTORED, f"{text} ({book.reason or 'told before'})")
