"""Planted bugs in what the master makes of checkpoints; see `bugs`."""

from __future__ import annotations

import dataclasses
from typing import Any

from holdfast_master.job.checkpoints import commits, interval
from holdfast_master.job.state.checkpoints import PendingStep
from holdfast_master.job.worlds import flush
from holdfast_master.policies import checkpoints as policy
from simulation.planted.patches import Bugs

BUGS = Bugs()


@BUGS.wrong("granted early", "a commit is granted before all is there", PendingStep, "whole")
def _first_part(_: Any, pending: PendingStep) -> bool:
    return bool(pending.ranks)


@BUGS.wrong("announced early", "a step is announced that may be lost", commits, "_send_grant")
def _announced(right: Any, out: Any, pending: PendingStep, node: Any) -> None:
    right(out, pending, node)
    commits._announce_to(out, node, pending.version, "")


@BUGS.wrong("one name", "two coordinators commit under one name", commits, "_send_grant")
def _one_name(right: Any, out: Any, pending: PendingStep, node: Any) -> None:
    pending.own = pending.attempt
    right(out, pending, node)


@BUGS.wrong(
    "parts are lacking", "a world starts from parts that nobody has", policy, "_put_together"
)
def _some_parts(right: Any, version: Any, offers: Any, parts: Any, most: int) -> Any:
    return right(version, offers, parts, most) or {node: {} for node in offers}


@BUGS.wrong("leaves at once", "a job ends without what is in memory", flush, "for_end")
def _at_once(*_: Any) -> bool:
    return False


@BUGS.wrong("rescues for ever", "a disk that hangs keeps a job from its end", flush, "_goes_on")
def _for_ever(right: Any, context: Any, new: Any, why: str, grace: float) -> Any:
    going = right(context, new, why, grace)
    if context.checkpoints.tracker.rescue is not None:
        context.checkpoints.tracker.rescue.seconds = 1e9
    return going


@BUGS.wrong("rescued early", "one node's part counts as a step", flush, "_stock")
def _with_parts(right: Any, context: Any) -> Any:
    stock, pending = right(context), context.checkpoints.tracker.pending
    there = [one.version for one in pending.values() if one.ranks]
    return dataclasses.replace(stock, committed=max([stock.committed, *there], key=_order))


def _order(version: Any) -> Any:
    return (0, 0) if version is None else (version.lineage, version.step)


@BUGS.wrong(
    "half confirmed", "a schedule is confirmed that not all ranks know", interval, "received"
)
def _confirmed(right: Any, context: Any, node: Any, world: Any, report: Any) -> None:
    right(context, node, world, report)
    offer = context.checkpoints.schedule.offer
    if offer is not None and offer.acked and context.checkpoints.schedule.round == world.round:
        interval._confirm(context, world, offer)


@BUGS.wrong("anybody's memory", "a world starts from what not all have", policy, "_newest")
def _newest(_: Any, offers: Any, damaged: Any, tier: Any, __: int) -> Any:
    found = frozenset().union(*offers)
    return max((one for one in found if (one, tier) not in damaged), default=None)
