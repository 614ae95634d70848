"""Planted bugs in what the master makes of checkpoints; see `bugs`."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

from holdfast_master.job.checkpoints import commits, interval
from holdfast_master.job.state.checkpoints import PendingStep
from holdfast_master.job.worlds import flush
from holdfast_master.policies import checkpoints as policy
from simulation.planted.agent import Patch


def _granted_early() -> list[Patch]:
    """A commit is granted once the first part is durable."""
    return [(PendingStep, "whole", property(lambda pending: bool(pending.ranks)))]


def _announced_early() -> list[Patch]:
    """A step counts as committed once it was granted."""
    right = commits._send_grant

    def send_grant(out: Any, pending: PendingStep, node: Any) -> None:
        right(out, pending, node)
        commits._announce_to(out, node, pending.version, "")

    return [(commits, "_send_grant", send_grant)]


def _one_name() -> list[Patch]:
    """A later coordinator gets the name of the one before: both commit."""

    def send_grant(out: Any, pending: PendingStep, node: Any) -> None:
        pending.own = pending.attempt
        right(out, pending, node)

    right = commits._send_grant
    return [(commits, "_send_grant", send_grant)]


def _anybodys_memory() -> list[Patch]:
    """A world starts from the newest that some node has."""

    def newest(offers: Any, damaged: Any, tier: Any, _: int) -> Any:
        found = frozenset().union(*offers)
        return max((one for one in found if (one, tier) not in damaged), default=None)

    return [(policy, "_newest", newest)]


def _parts_are_lacking() -> list[Patch]:
    """Nodes that have some parts of a version between them count as having all."""
    right = policy._put_together

    def put_together(version: Any, offers: Any, parts: Any, most: int) -> Any:
        return right(version, offers, parts, most) or {node: {} for node in offers}

    return [(policy, "_put_together", put_together)]


def _leaves_at_once() -> list[Patch]:
    """Agents are sent away with what only their memory has."""
    return [(flush, "for_end", lambda *_: False)]


def _rescues_for_ever() -> list[Patch]:
    """A master waits for ever for a rescue of the step that only memory has."""
    right = flush._goes_on

    def goes_on(context: Any, new: Any, why: str, grace: float) -> bool:
        going = right(context, new, why, grace)
        if context.checkpoints.tracker.rescue is not None:
            context.checkpoints.tracker.rescue.seconds = 1e9
        return going

    return [(flush, "_goes_on", goes_on)]


def _rescued_early() -> list[Patch]:
    """A step counts as rescued once the first part is on storage."""

    def committed(state: Any, tracker: Any) -> Any:
        stock = right(state, tracker)
        there = [one.version for one in tracker.pending.values() if one.ranks]
        return dataclasses.replace(stock, committed=max([stock.committed, *there], key=_order))

    def _order(version: Any) -> Any:
        return (0, 0) if version is None else (version.lineage, version.step)

    right = flush._stock
    return [(flush, "_stock", committed)]


def _half_confirmed() -> list[Patch]:
    """A schedule is confirmed once the first node has heard of it."""
    right = interval.received

    def received(context: Any, node: Any, world: Any, report: Any) -> None:
        right(context, node, world, report)
        offer = context.checkpoints.schedule.offer
        if offer is not None and offer.acked and context.checkpoints.schedule.round == world.round:
            interval._confirm(context, world, offer)

    return [(interval, "received", received)]


BUGS: tuple[tuple[str, str, Callable[[], list[Patch]]], ...] = (
    ("granted early", "a commit is granted before all is there", _granted_early),
    ("announced early", "a step is announced that may be lost", _announced_early),
    ("one name", "two coordinators commit under one name", _one_name),
    ("parts are lacking", "a world starts from parts that nobody has", _parts_are_lacking),
    ("leaves at once", "a job ends without what is in memory", _leaves_at_once),
    ("rescues for ever", "a disk that hangs keeps a job from its end", _rescues_for_ever),
    ("rescued early", "one node's part counts as a step", _rescued_early),
    ("half confirmed", "a schedule is confirmed that not all ranks know", _half_confirmed),
    ("anybody's memory", "a world starts from what not all have", _anybodys_memory),
)
"""Name, what is wrong, and how."""
