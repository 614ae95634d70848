"""The operator's stream: specs, pods, answers, the wish to stop.

Belongs here: one handler for each of its messages. Does not belong here: what a pod's end means
(`losses`), decisions for the operator (`replacements`).
"""

from __future__ import annotations

from holdfast_master.job import candidacy, charges, ending, replacements, rescue, users
from holdfast_master.job.desk import Desk
from holdfast_master.job.timers import Timer
from holdfast_master.job.wording import short
from holdfast_wire.messages import MasterSpec, SpecAccepted, StopWish
from holdfast_wire.reasons import EndReason, EventReason


def connected(desk: Desk) -> None:
    """The operator's stream began."""
    view = desk.operator
    first = not view.ever
    if not view.connected:
        desk.event(EventReason.OPERATOR_CONNECTED, "the operator watches this job")
    view.connected, view.ever, view.list_done = True, True, False
    view.listed.clear()
    replacements.repeat(desk)
    ending.tell_finish(desk)
    if first:
        refresh_all(desk)


def disconnected(desk: Desk) -> None:
    """The operator's stream ended; training goes on."""
    view = desk.operator
    if not view.connected:
        return
    view.connected = view.list_done = False
    desk.event(EventReason.OPERATOR_DISCONNECTED, "no operator: pods are neither made nor deleted")
    users.operator_gone(desk)


def refresh_all(desk: Desk) -> None:
    """Work out anew who is a candidate."""
    for node in list(desk.roster.nodes.values()):
        candidacy.refresh(desk, node)
    desk.dirty = True


def spec_arrived(desk: Desk, spec: MasterSpec) -> None:
    """A spec: in force if it is newer than the one that is."""
    before = desk.state.spec
    if before is not None and spec.generation <= before.generation:
        users.spec_in_force(desk)
        return
    wanted = desk.wanted
    desk.record(SpecAccepted(spec=spec), durable=True)
    text = (
        f"generation {spec.generation}: {spec.replicas} replicas "
        f"({spec.min_replicas} to {spec.max_replicas}), {spec.standbys} standbys"
    )
    desk.event(EventReason.SPEC_ACCEPTED, f"{text}, suspended" if spec.suspend else text)
    if desk.wanted < wanted:
        desk.release_overdue = False
        desk.timers.set(Timer.RELEASE, desk.now + spec.scale_down_grace_seconds)
    if desk.wanted != wanted:
        replacements.recall(desk)
    if before is not None and before.below_min_timeout_seconds != spec.below_min_timeout_seconds:
        desk.timers.cancel(Timer.BELOW_MIN)
    ending.watch_deadline(desk)
    refresh_all(desk)
    charges.judge_again(desk)
    users.spec_in_force(desk)


def release_due(desk: Desk) -> None:
    """Surplus nodes have waited long enough for the new world."""
    desk.release_overdue = True
    desk.dirty = True


def stop_wished(desk: Desk, wish: StopWish) -> None:
    """The operator wants the job to end."""
    grace = max(0.0, wish.grace_seconds)
    desk.stop_grace, desk.stop_by = grace, desk.now + grace
    text = short(wish.reason) or "the operator wants the job to end"
    reason = EndReason.STOPPED_BY_OPERATOR
    desk.request_end(succeeded=False, reason=reason, text=text, now=grace == 0)
    if grace == 0:
        rescue.hurry(desk)
