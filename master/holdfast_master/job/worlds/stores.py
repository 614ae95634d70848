"""Stores: the first nodes keep a TCPStore process ready for the round to come."""

from __future__ import annotations

import heapq
import itertools

from holdfast_master.job.incidents import incidents
from holdfast_master.job.state.changes import Change
from holdfast_master.job.state.context import JobContext
from holdfast_master.job.state.membership import Node
from holdfast_master.job.state.timers import Timer
from holdfast_master.job.state.world import World, Worlds
from holdfast_master.policies.failure import EvidenceKind
from holdfast_wire.messages import PrepareStore, StorePrepared
from holdfast_wire.reasons import EventReason

_READY = 2
"""Nodes that keep a store: the first, and the one that follows if the first is lost."""


def keep(job: JobContext) -> None:
    """Have the first nodes in rank order prepare a store."""
    for node in job.membership.present(_first_nodes(job)):
        request(job, node)


def _first_nodes(job: JobContext) -> list[int]:
    world = job.worlds.newest
    candidates = job.membership.candidates
    if not candidates:
        return []
    if world is not None and not job.worlds.broken:
        # Of replicas none follows another: a new one gets its own store.
        there = (rank for rank in world.places if rank in candidates)
        return list(itertools.islice(there, 0 if world.replicas else _READY))
    # A crowd that gathers is not searched at every hello; its first node is asked once known.
    if len(candidates) > job.settings.crowd_nodes:
        return []
    return heapq.nsmallest(_READY, candidates)


def hosts(world: World) -> list[int]:
    """The nodes whose stores a decided world needs: the first of each part that starts."""
    if not world.replicas:  # it may have ten thousand members
        return [world.fact.members[0].node_rank]
    return [rank for rank in world.starting if world.places[rank].group_rank == 0]


def request(job: JobContext, node: Node) -> None:
    """Ask a node for a store unless it has one, is at it, or has just failed to."""
    waiting = job.timers.running(Timer.STORE_RETRY, node.rank)
    if node.store is not None or node.store_asked or waiting or node.session is None:
        return
    node.store_asked = str(job.out.command("store", node.rank))
    job.out.send(node, PrepareStore(store_id=node.store_asked))


def prepared(job: JobContext, node: Node, _: int, message: StorePrepared) -> None:
    """A store waits for a round, or ended."""
    world = job.worlds.newest
    if world is not None and message.store_id and message.store_id in world.store_ids.values():
        if message.port == 0:
            _lost(job, world, node, message)
        return
    held = node.store is not None and node.store.store_id == message.store_id
    if message.store_id != node.store_asked and not held:
        return
    node.store_asked = ""
    if message.port:
        node.store, node.store_failed = message, False
        job.timers.cancel(Timer.STORE_RETRY, subject=node.rank)
        if not _waits_for_others(job, node):
            job.touch(Change.STORE_REPORTED)
        return
    job.touch(Change.STORE_REPORTED)
    node.store, node.store_failed = None, True
    job.timers.set(Timer.STORE_RETRY, job.now + 1.0, node.rank)
    text = f"node {node.rank} could not start a store: {message.error or 'no reason given'}"
    job.out.warn(EventReason.STORE_MISSING, text, node=node.rank)


def _waits_for_others(job: JobContext, node: Node) -> bool:
    """Whether the decided world waits for stores of others, too: each of thousands begins one."""
    world = job.worlds.newest
    if world is None or job.worlds.broken or node.rank not in world.awaits_stores:
        return False
    world.awaits_stores.discard(node.rank)
    return bool(world.awaits_stores)


def _lost(job: JobContext, world: World, node: Node, message: StorePrepared) -> None:
    """The store of the newest world ended. Ranks that are not connected try for many minutes."""
    text = f"the store of round {world.round} ended: {message.error or 'no reason given'}"
    job.out.warn(EventReason.STORE_MISSING, text, node=node.rank)
    if job.worlds.member(node) is not world or world.training or node.rank in world.finished:
        return
    item = node.evidence(EvidenceKind.STORE_LOST, f"node {node.rank}: {text}", job.now)
    incidents.report_store(job, item, world, node.rank)


def present(worlds: Worlds, node: Node, message: StorePrepared | None) -> None:
    """Take the store of a hello: one that waits is as good as one that was requested.

    Unless the newest round already has it: then the agent has not heard of its assignment yet.
    """
    used = worlds.newest.store_ids.values() if worlds.newest is not None else ()
    waits = message is not None and message.port != 0 and message.store_id not in used
    node.store_asked = ""
    node.store = message if waits else None
