"""Planted bugs in what the master makes of checkpoints; see `planted`."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

from holdfast_master.decide import checkpoints as policy
from holdfast_master.job import checkpoints, rescue, schedules
from holdfast_master.job.checkpoint_book import Pending
from simulation.planted_agent import Patch


def _granted_early() -> list[Patch]:
    """A commit is granted once the first part is durable."""
    return [(Pending, "whole", property(lambda pending: bool(pending.ranks)))]


def _announced_early() -> list[Patch]:
    """A step counts as committed once it was granted."""
    right = checkpoints._send_grant

    def send_grant(the_desk: Any, pending: Pending, node: Any) -> None:
        right(the_desk, pending, node)
        checkpoints._announce_to(the_desk, node, pending.version, "")

    return [(checkpoints, "_send_grant", send_grant)]


def _one_name() -> list[Patch]:
    """A later coordinator gets the name of the one before: both commit."""

    def send_grant(the_desk: Any, pending: Pending, node: Any) -> None:
        pending.own = pending.attempt
        right(the_desk, pending, node)

    right = checkpoints._send_grant
    return [(checkpoints, "_send_grant", send_grant)]


def _anybodys_memory() -> list[Patch]:
    """A world starts from the newest that some node has."""

    def newest(offers: Any, damaged: Any, *, from_memory: bool) -> Any:
        found = frozenset().union(*offers)
        return max((one for one in found if (one, from_memory) not in damaged), default=None)

    return [(policy, "_newest", newest)]


def _parts_are_lacking() -> list[Patch]:
    """Nodes that have some parts of a version between them count as having all."""
    right = policy._put_together

    def put_together(version: Any, offers: Any, parts: Any, most: int) -> Any:
        return right(version, offers, parts, most) or {node: {} for node in offers}

    return [(policy, "_put_together", put_together)]


def _leaves_at_once() -> list[Patch]:
    """Agents are sent away with what only their memory has."""
    return [(rescue, "for_end", lambda *_: False)]


def _rescues_for_ever() -> list[Patch]:
    """What only memory has is waited for until it is there."""
    right = rescue._goes_on

    def goes_on(the_desk: Any, new: Any, why: str, grace: float) -> bool:
        going = right(the_desk, new, why, grace)
        if the_desk.checkpoints.rescue is not None:
            the_desk.checkpoints.rescue.seconds = 1e9
        return going

    return [(rescue, "_goes_on", goes_on)]


def _rescued_early() -> list[Patch]:
    """A step counts as rescued once the first part is on storage."""

    def committed(the_desk: Any) -> Any:
        stock = right(the_desk)
        there = [one.version for one in the_desk.checkpoints.pending.values() if one.ranks]
        return dataclasses.replace(stock, committed=max([stock.committed, *there], key=_order))

    def _order(version: Any) -> Any:
        return (0, 0) if version is None else (version.lineage, version.step)

    right = rescue._stock
    return [(rescue, "_stock", committed)]


def _half_confirmed() -> list[Patch]:
    """A schedule is confirmed once the first node has heard of it."""
    right = schedules.heard

    def heard(the_desk: Any, node: Any, world: Any, report: Any) -> None:
        right(the_desk, node, world, report)
        offer = the_desk.schedule.offer
        if offer is not None and offer.seen and the_desk.schedule.round == world.round:
            schedules._confirm(the_desk, world, offer)

    return [(schedules, "heard", heard)]


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
