"""Why pods that should run do not: nothing lets them be made, be placed, or start.

What a condition's reason and message say of it. Pure.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Final

from holdfast_operator.plan.pods import Role, wanted_slots
from holdfast_operator.plan.situation import Situation

QUOTA_EXCEEDED: Final = "QuotaExceeded"
"""A ResourceQuota of the namespace is used up."""
PODS_REFUSED: Final = "PodsRefused"
"""An admission policy, or a missing right, keeps pods from being made."""
_QUOTA_WORDS: Final = "exceeded quota"
"""Of the API server; a status has no code for it."""


@dataclasses.dataclass(frozen=True, slots=True)
class Obstacle:
    """What is in the way, in the words of whoever says so."""

    reason: str
    """CamelCase."""
    text: str


def obstacle(situation: Situation, role: Role) -> Obstacle | None:
    """The first thing that keeps pods of a role from running; None: nothing is known of."""
    found = [*_refused(situation, role), *_waiting(situation, role)]
    if not found:
        return None
    others = f" ({len(found)} pods wait)" if len(found) > 1 else ""
    return dataclasses.replace(found[0], text=found[0].text + others)


def _refused(situation: Situation, role: Role) -> Iterator[Obstacle]:
    wanted = set(wanted_slots(situation.job.spec))
    filled = {pod.slot for pod in situation.live(role)}
    for slot, refusal in sorted(situation.job.refused.items()):
        if slot.role is role and slot in wanted - filled:
            reason = QUOTA_EXCEEDED if _QUOTA_WORDS in refusal.text else PODS_REFUSED
            yield Obstacle(reason, refusal.text)


def _waiting(situation: Situation, role: Role) -> Iterator[Obstacle]:
    for pod in situation.live(role):
        if pod.waiting:
            name = pod.slot.pod_name(situation.job.name, pod.incarnation)
            yield Obstacle(pod.waiting, f"{name}: {pod.waiting_text}")
