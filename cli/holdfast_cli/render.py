"""Twins as text: JSON for programs, aligned columns and single lines for people.

Pure: values in, strings out. No terminal, no clock.
"""

from __future__ import annotations

import dataclasses
import datetime as dt
import enum
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from holdfast_cli.cleaning import clean
from holdfast_wire.messages import (
    BudgetKind,
    CheckpointInterval,
    GetGoodputResponse,
    GoodputEntry,
    Incident,
    JobEvent,
    JobPhase,
    JobStatus,
    NodeInfo,
)

_KILO = 1000.0
_MINUTE = 60.0
_HOUR = 3600.0


def to_plain(value: Any) -> Any:
    """Return `value` as JSON takes it: twins become objects, enums their names.

    JSON has no NaN and no infinity: such a number becomes null.
    """
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = dataclasses.fields(value)
        return {field.name: to_plain(getattr(value, field.name)) for field in fields}
    if isinstance(value, enum.Enum):
        return value.name
    if isinstance(value, Mapping):
        return {str(key): to_plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [to_plain(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


def to_json(value: Any, *, indent: int | None = 2) -> str:
    """Return `value` as JSON, indented; with `indent` None on one line."""
    return json.dumps(to_plain(value), indent=indent, allow_nan=False)


def columns(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return an aligned table; three spaces between columns, none at the ends of lines."""
    table = [tuple(header), *(tuple(map(clean, row)) for row in rows)]
    widths = [max(len(row[at]) for row in table) for at in range(len(header))]
    lines = ("   ".join(cell.ljust(widths[at]) for at, cell in enumerate(row)) for row in table)
    return "\n".join(line.rstrip() for line in lines)


def duration(seconds: float) -> str:
    """Return `seconds` in the unit that a person would choose."""
    if seconds < 1:
        return f"{seconds * _KILO:.0f} ms"
    if seconds < _MINUTE:
        return f"{seconds:.1f} s"
    if seconds < _HOUR:
        return f"{int(seconds // _MINUTE)} min {int(seconds % _MINUTE)} s"
    return f"{int(seconds // _HOUR)} h {int(seconds % _HOUR // _MINUTE)} min"


def rate(per_second: float) -> str:
    """Return samples per second, shortened."""
    return f"{per_second / _KILO:.1f}k/s" if per_second >= _KILO else f"{per_second:.0f}/s"


def clock(unix: float) -> str:
    """Return the local time of day of a Unix time."""
    return dt.datetime.fromtimestamp(unix).astimezone().strftime("%H:%M:%S") if unix else "-"


def phase_name(phase: JobPhase) -> str:
    """Return `Training` for JobPhase.TRAINING."""
    return phase.name.capitalize()


def status_line(status: JobStatus) -> str:
    """Return the one line of progress that plain output repeats."""
    parts = [
        f"{phase_name(status.phase):<9}",
        f"world {status.world_size}",
        f"round {status.round}",
        f"step {status.step}",
    ]
    if status.has_loss:
        parts.append(f"loss {status.loss:.4f}")
    if status.samples_per_second:
        parts.append(f"tokens {rate(status.samples_per_second)}")
    parts.append(f"goodput {status.goodput:.0%}")
    if status.phase is not JobPhase.TRAINING and status.text:
        parts.append(status.text)
    return clean("  ".join(parts))


def event_line(event: JobEvent) -> str:
    """Return one event: what, where, why."""
    where = f"node {event.node}  " if event.node else ""
    return clean(f"{event.reason}  {where}{event.text}")


def status_table(status: JobStatus) -> str:
    """Return `holdfast status`: a field a line."""
    size = f"{status.replicas} (min {status.min_replicas}, max {status.max_replicas})"
    nodes = f"{status.active_nodes} active, {status.ready_nodes} ready"
    rows = [
        ("Job", f"{status.name} ({status.uid})"),
        ("Phase", f"{phase_name(status.phase)}  {status.reason}  {status.text}".strip()),
        ("World", f"{status.world_size} ranks, round {status.round}, epoch {status.epoch}"),
        ("Nodes", f"{nodes}, {status.standby_nodes} standby"),
        ("Replicas", size),
        ("Step", _step(status)),
        ("Checkpoints", _checkpoints(status)),
        ("Loss", f"{status.loss:.4f}" if status.has_loss else "not reported"),
        ("Tokens", rate(status.samples_per_second)),
        ("Goodput", f"{status.goodput:.1%}"),
        ("Restarts", _restarts(status)),
        ("Budgets", _budgets(status)),
        ("Running for", duration(status.job_seconds)),
    ]
    rows += [(one.tier.capitalize(), _interval(one)) for one in status.checkpoint_intervals]
    if status.excluded_nodes:
        rows.append(("Excluded", ", ".join(status.excluded_nodes)))
    return "\n".join(f"{name + ':':<13}{clean(text)}" for name, text in rows)


def nodes_table(nodes: Sequence[NodeInfo]) -> str:
    """Return `holdfast nodes`: a node a line."""
    header = ("NODE", "STATE", "RANKS", "STEP", "STEP TIME", "HOST", "AGENT PID", "SILENT")
    return columns(header, [_node_row(node) for node in nodes])


def events_table(events: Sequence[JobEvent]) -> str:
    """Return `holdfast events`: an event a line, oldest first."""
    header = ("TIME", "LEVEL", "ROUND", "NODE", "REASON", "TEXT")
    rows = [
        (
            clock(event.unix_time),
            event.severity.name.capitalize(),
            str(event.round),
            event.node or "-",
            event.reason,
            event.text,
        )
        for event in events
    ]
    return columns(header, rows)


def goodput_table(goodput: GetGoodputResponse) -> str:
    """Return `holdfast goodput`: classes, then incidents with what they cost."""
    total = goodput.node_seconds or 1.0
    classes = [
        (class_name(entry), f"{entry.node_seconds:.1f}", f"{entry.node_seconds / total:.1%}")
        for entry in sorted(goodput.totals, key=lambda entry: -entry.node_seconds)
        if entry.node_seconds > 0
    ]
    text = columns(("CLASS", "NODE-SECONDS", "SHARE"), classes)
    if goodput.incidents:
        text += "\n\n" + incidents_table(goodput.incidents)
    return text


def incidents_table(incidents: Sequence[Incident]) -> str:
    """Return one line for each incident: what it was and where its seconds went.

    A dash stands where it did not come to that: another incident was sooner.
    """
    header = (
        "TIME",
        "INCIDENT",
        "CULPRIT",
        "BUDGET",
        "DETECT",
        "DECIDE",
        "RESPAWN",
        "FIRST STEP",
        "REDONE",
    )
    return columns(header, [_incident_row(incident) for incident in incidents])


def class_name(entry: GoodputEntry) -> str:
    """Return `rolled back` for GoodputClass.ROLLED_BACK."""
    return entry.kind.name.lower().replace("_", " ")


def _interval(one: CheckpointInterval) -> str:
    often = f"saved every {one.every} steps" if one.every else "no saves of its own"
    return f"{often}: {one.reason}"


def _restarts(status: JobStatus) -> str:
    return (
        f"{status.restarts_in_place} in place, {status.nodes_replaced} nodes replaced, "
        f"{status.nodes_disrupted} disrupted, {status.rescales} rescales"
    )


def _budgets(status: JobStatus) -> str:
    spent = [f"{_budget(state.kind)} {state.used}/{state.limit}" for state in status.budgets]
    return ", ".join(spent) or "untouched"


def _budget(kind: BudgetKind) -> str:
    return kind.name.lower().replace("_", " ")


def _node_row(node: NodeInfo) -> tuple[str, ...]:
    ranks = ",".join(str(rank.rank) for rank in node.ranks) or "-"
    step = min((rank.step for rank in node.ranks), default=0)
    slowest = max((rank.step_seconds for rank in node.ranks), default=0.0)
    return (
        str(node.node_rank),
        node.state.name.capitalize(),
        ranks,
        str(step) if node.ranks else "-",
        duration(slowest) if node.ranks else "-",
        node.host or "-",
        str(node.agent_pid) if node.agent_pid else "-",
        duration(node.silent_seconds) if node.agent_pid else "-",
    )


def _step(status: JobStatus) -> str:
    known = status.step_seconds > 0
    return f"{status.step}, {duration(status.step_seconds)} each" if known else str(status.step)


def _checkpoints(status: JobStatus) -> str:
    """Return the newest step of each tier."""
    tiers = [(status.stored_step, "on storage"), (status.memory_step, "in memory")]
    return ", ".join(f"step {step} {where}" for step, where in tiers if step) or "none yet"


def _incident_row(incident: Incident) -> tuple[str, ...]:
    culprit = f"node {incident.culprit_node}" if incident.culprit_node else "-"
    if incident.culprit_rank:
        culprit += f" rank {incident.culprit_rank}"
    charged = _budget(incident.charged) if incident.charged else "none"
    return (
        clock(incident.opened_unix),
        incident.cause,
        culprit,
        "open" if incident.open else charged,
        duration(incident.detection_seconds),
        duration(incident.decided_seconds) if incident.to_round else "-",
        duration(incident.respawned_seconds) if incident.respawned_seconds else "-",
        duration(incident.first_step_seconds) if incident.first_step_seconds else "-",
        f"{incident.steps_redone} steps",
    )
