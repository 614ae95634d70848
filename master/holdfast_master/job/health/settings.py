"""Settings of `spec.health` that contradict each other, or that can never have an effect.

Belongs here: what is said of them once, when a spec comes in force. Does not belong here: what is
refused before (the rules of the CRD), the policies that use the settings.
"""

from __future__ import annotations

from collections.abc import Iterator

from holdfast_master.job.state.health import OFF
from holdfast_wire.messages import HealthMode, MasterSpec


def ineffective(spec: MasterSpec) -> tuple[str, ...]:
    """Return what is odd about a job's health settings: field, value, effect and remedy of each."""
    return (*_of_hangs(spec), *_of_stragglers(spec))


def _of_hangs(spec: MasterSpec) -> Iterator[str]:
    hang = spec.health.hang if spec.health is not None else None
    if hang is None or hang.mode in OFF:
        return
    if hang.first_step_seconds < hang.min_seconds:
        yield (
            f"health.hang.firstStepSeconds {hang.first_step_seconds:g} is below minSeconds "
            f"{hang.min_seconds:g}, so a first step has {hang.min_seconds:g} s as well: raise "
            "firstStepSeconds, or lower minSeconds"
        )


def _of_stragglers(spec: MasterSpec) -> Iterator[str]:
    slow = spec.health.straggler if spec.health is not None else None
    if slow is None or slow.mode in OFF:
        return
    if slow.votes > slow.votes_out_of:
        yield (
            f"health.straggler.votes {slow.votes} is above votesOutOf {slow.votes_out_of}, so "
            "nobody is ever called slow: lower votes, or raise votesOutOf"
        )
    room = spec.replicas - spec.min_replicas >= max(1, spec.node_unit)
    if slow.mode is HealthMode.ACT and not room and not spec.standbys:
        yield (
            f"health.straggler.mode Act excludes nobody: fewer than minReplicas "
            f"{spec.min_replicas} would be left. Set worker.standbys, or lower minReplicas"
        )
