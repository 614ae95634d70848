"""Summary of an ended job for people. Pure: the master's answers in, text out."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection

from holdfast_cli import render
from holdfast_cli.render import counted
from holdfast_cli.terminal_text import clean
from holdfast_wire.messages import GetGoodputResponse, Incident, JobPhase, JobStatus
from holdfast_wire.reasons import Cause

_AT_A_BARRIER = frozenset({Cause.RESCALED, Cause.DRAINED, Cause.NODE_REMOVED, Cause.RESTART_ASKED})
"""Causes of an interruption that waits for a barrier where the ranks use the SDK."""
_OF_ALL = frozenset({Cause.RESTART_ASKED})
"""Those of them that stop replicas, too, which otherwise come and go while the others train."""


def summary(status: JobStatus, goodput: GetGoodputResponse) -> str:
    """Return the job's end, its restarts, and the course of its incidents."""
    classes = render.goodput_table(dataclasses.replace(goodput, incidents=()))
    parts = [_headline(status), _restarts(status), classes]
    if goodput.incidents:
        parts.append("Incidents, and the time to the next step:")
        replicas = bool(status.outer_epoch)
        parts += [_incident(incident, replicas=replicas) for incident in goodput.incidents]
    return clean("\n".join(parts), lines=True)


def _headline(status: JobStatus) -> str:
    how = "succeeded" if status.phase is JobPhase.SUCCEEDED else "failed"
    how = "was stopped" if render.was_stopped(status) else how
    loss = f", last loss of rank 0: {status.loss:.4f}" if status.has_loss else ""
    why = "" if status.phase is JobPhase.SUCCEEDED else f": {status.reason}: {status.text}"
    took = render.duration(status.job_seconds)
    return f"Job {status.name} {how} after {took}, step {render.step_number(status)}{loss}{why}"


def _restarts(status: JobStatus) -> str:
    return (
        f"Restarts: {status.restarts_in_place} in place, "
        f"{counted(status.nodes_replaced, 'node')} replaced, "
        f"{counted(status.rescales, 'rescale')}, {counted(status.round, 'round')}. "
        f"Goodput {render.share(status.goodput, assumed=status.goodput_assumed)}."
    )


def _incident(incident: Incident, *, replicas: bool) -> str:
    culprit = f" node {incident.culprit_node}" if incident.culprit_node else ""
    rank = f" rank {incident.culprit_rank}" if incident.culprit_rank else ""
    charged = render.words(incident.charged) if incident.charged else "none"
    to = incident.to_round or "none"
    redone = counted(incident.steps_redone, "step")
    return (
        f"  {render.clock(incident.opened_unix)}  round {incident.from_round} -> {to}  "
        f"{incident.cause}{culprit}{rank}: {incident.text}\n"
        f"    {_course(incident, replicas=replicas)}; {redone} redone; budget: {charged}"
    )


def _had_barrier(incident: Incident, barriers: Collection[str]) -> bool:
    """Return True if the ranks trained on until all of them had saved, before the next world."""
    lost = incident.steps_redone > 0 or incident.first_step_unseen
    return incident.cause in barriers and not lost


def _course(incident: Incident, *, replicas: bool) -> str:
    """Describe an incident's course; a phase of 0 s did not happen.

    replicas: one that is lost or comes costs the others no step.
    """
    barriers = _OF_ALL if replicas else _AT_A_BARRIER
    started, stepped = incident.respawned_seconds, incident.first_step_seconds
    decided = "trained on to the barrier" if _had_barrier(incident, barriers) else "decided"
    pieces = [("detected", incident.detection_seconds), (decided, incident.decided_seconds)]
    if started:
        pieces.append(("respawned", started - incident.decided_seconds))
    if stepped:
        pieces.append(("restored and first step", stepped - started))
    where = ", ".join(f"{name} {render.duration(max(0.0, spent))}" for name, spent in pieces)
    if incident.first_step_unseen:
        return f"no rank reports its next step: {where}"
    if not stepped:
        return f"no step followed: {where}"
    guess = "~" if incident.first_step_guessed else ""
    whole = render.duration(stepped + incident.detection_seconds)
    alone = incident.going_replicas > 0 and incident.cause not in _OF_ALL
    step = "its own next step, while other replicas trained on" if alone else "the next step"
    return f"{guess}{whole} to {step}: {where}"
