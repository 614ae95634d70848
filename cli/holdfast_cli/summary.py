"""What a person wants to read when a job has ended. Pure: answers of the master in, text out."""

from __future__ import annotations

from holdfast_cli import render
from holdfast_cli.cleaning import clean
from holdfast_wire.messages import GetGoodputResponse, Incident, JobPhase, JobStatus


def summary(status: JobStatus, goodput: GetGoodputResponse) -> str:
    """Return how the job ended, its restarts, and where its seconds went."""
    parts = [_headline(status), _restarts(status), render.goodput_table(_without(goodput))]
    if goodput.incidents:
        parts.append("Incidents, and the seconds that each one cost:")
        parts += [_incident(incident) for incident in goodput.incidents]
    return clean("\n".join(parts), lines=True)


def _headline(status: JobStatus) -> str:
    how = "succeeded" if status.phase is JobPhase.SUCCEEDED else "failed"
    loss = f", final loss {status.loss:.4f}" if status.has_loss else ""
    why = "" if status.phase is JobPhase.SUCCEEDED else f": {status.reason}: {status.text}"
    took = render.duration(status.job_seconds)
    return f"Job {status.name} {how} after {took}, step {status.step}{loss}{why}"


def _restarts(status: JobStatus) -> str:
    return (
        f"Restarts: {status.restarts_in_place} in place, {status.nodes_replaced} nodes replaced, "
        f"{status.rescales} rescales, {status.round} rounds. Goodput {status.goodput:.1%}."
    )


def _without(goodput: GetGoodputResponse) -> GetGoodputResponse:
    return GetGoodputResponse(
        totals=goodput.totals, node_seconds=goodput.node_seconds, goodput=goodput.goodput
    )


def _incident(incident: Incident) -> str:
    culprit = f" node {incident.culprit_node}" if incident.culprit_node else ""
    rank = f" rank {incident.culprit_rank}" if incident.culprit_rank else ""
    charged = incident.charged.name.lower().replace("_", " ") if incident.charged else "none"
    to = incident.to_round or "none"
    return (
        f"  {render.clock(incident.opened_unix)}  round {incident.from_round} -> {to}  "
        f"{incident.cause}{culprit}{rank}: {incident.text}\n"
        f"    {_course(incident)}; {incident.steps_redone} steps redone; budget: {charged}"
    )


def _course(incident: Incident) -> str:
    """Where the time went, as far as it came: seconds of what did not happen are 0."""
    started, stepped = incident.respawned_seconds, incident.first_step_seconds
    pieces = [("detected", incident.detection_seconds), ("decided", incident.decided_seconds)]
    if started:
        pieces.append(("respawned", started - incident.decided_seconds))
    if stepped:
        pieces.append(("restored and first step", stepped - started))
    where = ", ".join(f"{name} {render.duration(max(0.0, spent))}" for name, spent in pieces)
    if not stepped:
        return f"no step followed: {where}"
    return f"{render.duration(stepped + incident.detection_seconds)} to the next step: {where}"
