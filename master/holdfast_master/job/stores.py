"""Stores: the first nodes keep a TCPStore process ready for the round to come.

Belongs here: asking for stores and noting what became of them. Does not belong here: using one
(`rounds`).
"""

from __future__ import annotations

import heapq

from holdfast_master.job.desk import Desk, Warn
from holdfast_master.job.roster import Node
from holdfast_master.job.timers import Timer
from holdfast_wire.messages import PrepareStore, StorePrepared
from holdfast_wire.reasons import EventReason

_READY = 2
"""Nodes that keep a store: the first, and the one that follows if the first is lost."""


def keep(desk: Desk) -> None:
    """Have the first nodes in rank order prepare a store."""
    for rank in _first_nodes(desk):
        node = desk.roster.nodes.get(rank)
        if node is not None:
            request(desk, node)


def _first_nodes(desk: Desk) -> list[int]:
    world = desk.world
    candidates = desk.roster.candidates
    if not candidates:
        return []
    if world is not None and not desk.broken:
        found: list[int] = []
        for rank in world.places:
            if rank in candidates:
                found.append(rank)
            if len(found) == _READY:
                break
        return found
    # A crowd that gathers is not searched at every hello; its first node is asked once known.
    if len(candidates) > desk.settings.crowd_nodes:
        return []
    return heapq.nsmallest(_READY, candidates)


def request(desk: Desk, node: Node) -> None:
    """Ask a node for a store unless it has one, is at it, or has just failed to."""
    waiting = desk.timers.running(Timer.STORE_RETRY, node.rank)
    if node.store is not None or node.store_asked or waiting or node.session is None:
        return
    node.store_asked = str(desk.command("store", node.rank))
    desk.send(node, PrepareStore(store_id=node.store_asked))


def prepared(desk: Desk, node: Node, message: StorePrepared) -> None:
    """A store waits for a round, or ended."""
    world = desk.world
    if world is not None and message.store_id and message.store_id == world.store_id:
        if message.port == 0:
            text = f"the store of round {world.round} ended: {message.error or 'no reason given'}"
            desk.event(EventReason.STORE_MISSING, text, Warn, node=node.rank)
        return
    held = node.store is not None and node.store.store_id == message.store_id
    if message.store_id != node.store_asked and not held:
        return
    node.store_asked = ""
    desk.dirty = True
    if message.port:
        node.store, node.store_failed = message, False
        desk.timers.cancel(Timer.STORE_RETRY, node.rank)
        return
    node.store, node.store_failed = None, True
    desk.timers.set(Timer.STORE_RETRY, desk.now + 1.0, node.rank)
    text = f"node {node.rank} could not start a store: {message.error or 'no reason given'}"
    desk.event(EventReason.STORE_MISSING, text, Warn, node=node.rank)


def present(desk: Desk, node: Node, message: StorePrepared | None) -> None:
    """What a hello says of stores: one that waits is as good as one that was asked for.

    Unless the newest round already has it: then the agent has not heard of its assignment yet.
    """
    used = desk.world.store_id if desk.world is not None else ""
    waits = message is not None and message.port != 0 and message.store_id != used
    node.store_asked = ""
    node.store = message if waits else None
