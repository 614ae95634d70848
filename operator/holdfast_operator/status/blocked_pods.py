"""Words for pods that do not run: not made, not placed, not started, ended too early. Pure."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Final

from holdfast_operator.plan.fill import how_ended
from holdfast_operator.plan.inputs import Look
from holdfast_operator.plan.pods import Role, wanted_slots

QUOTA_EXCEEDED: Final = "QuotaExceeded"
"""A ResourceQuota of the namespace is used up."""
PODS_REFUSED: Final = "PodsRefused"
"""An admission policy refuses the pods, or a right to make them is missing."""
GANG_MISSING: Final = "GangMissing"
"""The scheduler that `spec.scheduling.gang.backend` names is not there."""
_QUOTA_WORDS: Final = "exceeded quota"
"""Text of the API server; its status has no code for it."""
_LONGEST_WORDS: Final = 300
"""Characters of a pod's last words that a message repeats."""


@dataclasses.dataclass(frozen=True, slots=True)
class Obstacle:
    """Obstacle of a pod, in the words of its source."""

    reason: str
    """CamelCase."""
    text: str


def obstacle(look: Look, role: Role) -> Obstacle | None:
    """Return the first known obstacle of a role's pods; None: none is known."""
    grouped = look.job.grouped
    if grouped is not None and grouped.blocked:
        return Obstacle(GANG_MISSING, grouped.text)
    found = [*_refused(look, role), *_waiting(look, role)]
    if not found:
        return None
    others = f" ({len(found)} pods wait)" if len(found) > 1 else ""
    return dataclasses.replace(found[0], text=found[0].text + others)


def failed(look: Look) -> str:
    """Describe worker pods that fail while no master is there to judge them; empty: none do.

    Nobody counts their failures, so that nothing else would name them.
    """
    wanted = [slot for slot in wanted_slots(look.job.spec) if slot.role is Role.WORKER]
    entries = {slot: look.entry(slot) for slot in wanted}
    rows = [slot for slot, one in entries.items() if one.quick > 0 and not one.succeeded]
    if look.master.connected or not rows:
        return ""
    slot = max(rows, key=lambda one: (look.entry(one).quick, -one.index))
    entry = look.entry(slot)
    dead = [pod for pod in look.pods.get(slot, ()) if not pod.live and not pod.lost]
    words = how_ended(dead[-1]) if dead else "ended"
    said = dead[-1].text.strip().splitlines()[-1:] if dead else []
    text = f"{slot.pod_name(look.job.name, entry.ended)} {words}"
    text += f": {said[0][:_LONGEST_WORDS]}" if said else ""
    row = f"; it is the last of {entry.quick} in a row" if entry.quick > 1 else ""
    others = f" ({len(rows)} workers fail)" if len(rows) > 1 else ""
    return f"{text}{row}{others}"


def awaited(look: Look, role: Role) -> str:
    """Return the reason why pods of a role wait, be it only for time; empty: none is known."""
    waits = [pod for pod in look.live(role) if pod.not_started]
    if not waits:
        return ""
    first = waits[0]
    name = first.slot.pod_name(look.job.name, first.incarnation)
    others = f" ({len(waits)} pods wait)" if len(waits) > 1 else ""
    return f"{name}: {first.not_started}{others}"


def _refused(look: Look, role: Role) -> Iterator[Obstacle]:
    wanted = set(wanted_slots(look.job.spec))
    filled = {pod.slot for pod in look.live(role)}
    for slot, refusal in sorted(look.job.refused.items()):
        if slot.role is role and slot in wanted - filled:
            reason = QUOTA_EXCEEDED if _QUOTA_WORDS in refusal.text else PODS_REFUSED
            yield Obstacle(reason, refusal.text)


def _waiting(look: Look, role: Role) -> Iterator[Obstacle]:
    for pod in look.live(role):
        if pod.waiting:
            name = pod.slot.pod_name(look.job.name, pod.incarnation)
            yield Obstacle(pod.waiting, f"{name}: {pod.waiting_text}")
