"""Known world of a job: from its master, or from the last status and the pods. Pure.

A master that is away cannot report the end of its world; the pods show it. An operator that has
just begun has heard no master yet: a running job keeps its phase then.
"""

from __future__ import annotations

import dataclasses
from typing import Final

from holdfast_operator.plan.inputs import Look
from holdfast_operator.plan.pods import Role
from holdfast_wire.messages import JobPhase, PodPhase

KEPT_SECONDS: Final = 10.0
"""Time for which a predecessor's status is believed before the master's first message: a few tries
to reach it, and its first status, which usually comes within two seconds."""
_STARTED: Final = frozenset({"Running", "Scaling", "Restarting"})
"""Phases of a job that has trained and goes on."""
_STARTING: Final = frozenset({JobPhase.FORMING, JobPhase.STARTING})
"""Phases of the master: there is a world, and it does not train yet."""


@dataclasses.dataclass(frozen=True, slots=True)
class KnownWorld:
    """The newest knowledge of a world."""

    round: int
    """Number of the round; 0: there was none yet."""
    active: int
    """Number of workers that train."""
    size: int
    """Number of ranks."""


def hears(look: Look) -> bool:
    """Return True if the master reports the present state."""
    return look.master.connected and look.master.status is not None


def begun(look: Look, role: Role) -> int:
    """Count the living pods of a role that have begun: one that waits for a node is in no world."""
    return sum(pod.phase is not PodPhase.PENDING for pod in look.live(role))


def world(look: Look) -> KnownWorld:
    """Return the world of the master's last status, or of ours; no larger than the pods allow."""
    said = look.master.status
    if said is not None:
        last = KnownWorld(said.round, said.active_nodes, said.world_size)
    else:
        written = look.job.status.get("world", {})
        names = ("round", "activeReplicas", "size")
        last = KnownWorld(*(written.get(name, 0) for name in names))
    if hears(look):
        return last
    active = min(last.active, begun(look, Role.WORKER))
    return dataclasses.replace(last, active=active, size=last.size if active else 0)


def kept_until(look: Look) -> float | None:
    """Return the Unix time until which a predecessor's status is believed, s; None: not now."""
    job = look.job
    if not job.first_seen_at or job.ended_at is not None or look.master.status is not None:
        return None
    until = job.first_seen_at + KEPT_SECONDS
    return until if look.now < until else None


def kept_phase(look: Look) -> str | None:
    """Return the phase that a predecessor wrote, while it is believed and the job has trained."""
    status = look.job.status
    phase = status.get("phase")
    believed = kept_until(look) is not None and "startTime" in status and phase in _STARTED
    return phase if believed else None


def starts(look: Look) -> bool:
    """Return True if the world does not train yet: a rank has its first step to make."""
    said = look.master.status
    if said is not None:
        return said.phase in _STARTING
    return "startTime" not in look.job.status or kept_phase(look) == "Restarting"
