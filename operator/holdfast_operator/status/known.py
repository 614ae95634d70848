"""What is known of a job's world: the master's word, or what last status and pods say of it.

A master that is away cannot say that its world is gone; the pods can. An operator that has just
begun has heard no master yet, and is no reason to call a running job anything else. Pure.
"""

from __future__ import annotations

import dataclasses
from typing import Final

from holdfast_operator.plan.pods import Role
from holdfast_operator.plan.situation import Situation
from holdfast_wire.messages import JobPhase, PodPhase

KEPT_S: Final = 10.0
"""How long what a predecessor wrote is believed before the master has spoken: a few tries to reach
it, and its first status, which is there within two seconds where all is well."""
_STARTED: Final = frozenset({"Running", "Scaling", "Restarting"})
"""Phases of a job that has trained and goes on."""
_STARTING: Final = frozenset({JobPhase.FORMING, JobPhase.STARTING})
"""Of the master: there is a world, and it does not train yet."""


@dataclasses.dataclass(frozen=True, slots=True)
class World:
    """The newest that is known of it."""

    round: int
    """0: there was none yet."""
    active: int
    """Workers that train."""
    size: int
    """Ranks."""


def hears(situation: Situation) -> bool:
    """Whether the master tells now what is."""
    return situation.master.connected and situation.master.status is not None


def begun(situation: Situation, role: Role) -> int:
    """How many pods of a role live and have begun: one that waits for a node is in no world."""
    return sum(pod.phase is not PodPhase.PENDING for pod in situation.live(role))


def world(situation: Situation) -> World:
    """The world of the master's last word, or of the last status; no larger than the pods allow."""
    said = situation.master.status
    if said is not None:
        last = World(said.round, said.active_nodes, said.world_size)
    else:
        written = situation.job.status.get("world", {})
        names = ("round", "activeReplicas", "size")
        last = World(*(written.get(name, 0) for name in names))
    if hears(situation):
        return last
    active = min(last.active, begun(situation, Role.WORKER))
    return dataclasses.replace(last, active=active, size=last.size if active else 0)


def kept_until(situation: Situation) -> float | None:
    """Until when (Unix time, s) a predecessor's status is believed; None: no longer."""
    job = situation.job
    if not job.first_seen_at or job.ended_at is not None or situation.master.status is not None:
        return None
    until = job.first_seen_at + KEPT_S
    return until if situation.now < until else None


def kept_phase(situation: Situation) -> str | None:
    """The phase that a predecessor wrote, while it is believed of a job that has trained."""
    status = situation.job.status
    phase = status.get("phase")
    believed = kept_until(situation) is not None and "startTime" in status and phase in _STARTED
    return phase if believed else None


def starts(situation: Situation) -> bool:
    """Whether the world is one that does not train yet: a rank has its first step to make."""
    said = situation.master.status
    if said is not None:
        return said.phase in _STARTING
    return "startTime" not in situation.job.status or kept_phase(situation) == "Restarting"
