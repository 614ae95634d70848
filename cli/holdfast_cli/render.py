"""Wire messages as text: JSON for programs, aligned columns and single lines for people.

Pure: values in, strings out. No terminal, no clock.
"""

from __future__ import annotations

import dataclasses
import datetime as dt
import enum
import json
import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, Final

from holdfast_cli.terminal_text import clean
from holdfast_wire import messages as wire
from holdfast_wire.reasons import EndReason
from holdfast_wire.strikes import NODE_SOURCE

ASSUMED = "assumed where no rank reports steps: the time since a guessed first step, or the start"
"""Note beside a goodput that is a guess."""
_UNKEPT = "told only while the job runs"
_SHOWN = 20
"""Replicas that a status names."""
_WAITING = frozenset({wire.NodeState.READY, wire.NodeState.STANDBY})
"""States of a node that a world could take: one that failed its check is in none of them."""
BAR: Final = 20
"""Characters of the longest bar of a lag."""
FULL: Final = 0.5
"""Lag, as a share of a step, that fills a bar."""
_KILO = 1000.0
_MINUTE = 60.0
_HOUR = 3600.0


def to_plain(value: Any) -> Any:
    """Return `value` in JSON's types: messages become objects, enums their names.

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
    """Return `seconds` in a unit that is easy to read."""
    if seconds < 1:
        return f"{seconds * _KILO:.0f} ms"
    if seconds < _MINUTE:
        return f"{seconds:.1f} s"
    if seconds < _HOUR:
        return f"{int(seconds // _MINUTE)} min {int(seconds % _MINUTE)} s"
    return f"{int(seconds // _HOUR)} h {int(seconds % _HOUR // _MINUTE)} min"


def counted(number: int, thing: str) -> str:
    """Return `1 node` or `2 nodes`."""
    return f"{number} {thing}" if number == 1 else f"{number} {thing}s"


def rate(per_second: float) -> str:
    """Return samples per second, shortened."""
    return f"{per_second / _KILO:.1f}k/s" if per_second >= _KILO else f"{per_second:.0f}/s"


def clock(unix: float) -> str:
    """Return the local time of day of a Unix time."""
    return dt.datetime.fromtimestamp(unix).astimezone().strftime("%H:%M:%S") if unix else "-"


def phase_name(status: wire.JobStatus) -> str:
    """Return `Training` for JobPhase.TRAINING; `Stopped` for a job that a person has stopped."""
    return "Stopped" if was_stopped(status) else status.phase.name.capitalize()


def was_stopped(status: wire.JobStatus) -> bool:
    """Return True if a person stopped the job."""
    asked = status.reason in (EndReason.STOPPED_BY_USER, EndReason.STOPPED_BY_OPERATOR)
    return status.phase is wire.JobPhase.FAILED and asked


def status_line(status: wire.JobStatus) -> str:
    """Return the line of progress that plain output repeats."""
    parts = [
        f"{phase_name(status):<9}",
        f"world {status.world_size}",
        f"round {status.round}",
        f"step {step_number(status)}",
    ]
    if status.wanted_replicas:
        parts.insert(2, f"in step {status.replicas_in_step}/{status.wanted_replicas}")
    if status.has_loss:
        parts.append(f"loss {status.loss:.4f}")
    if status.samples_per_second:
        parts.append(f"samples {rate(status.samples_per_second)}")
    parts.append(f"goodput {share(status.goodput, 0, assumed=status.goodput_assumed)}")
    if status.phase is not wire.JobPhase.TRAINING and status.text:
        parts.append(status.text)
    return clean("  ".join(parts))


def event_line(event: wire.JobEvent) -> str:
    """Return one event: event, node and reason."""
    where = f"node {event.node}  " if event.node else ""
    return clean(f"{event.reason}  {where}{event.text}")


def status_table(status: wire.JobStatus, unkept: Collection[str] = ()) -> str:
    """Return `holdfast status`: a field a line.

    Args:
        status: The job's status.
        unkept: Lines whose fields are not known any more, because the job has ended.
    """
    size = f"{status.replicas} (min {status.min_replicas}, max {status.max_replicas})"
    counts = [("Workers", size), ("Replicas", _in_step(status))]
    nodes = f"{status.active_nodes} active, {status.ready_nodes} ready"
    rows = [
        ("Job", f"{status.name} ({status.uid})"),
        ("Phase", f"{phase_name(status)}  {status.reason}  {status.text}".strip()),
        ("World", f"{_ranks(status)}, round {status.round}, epoch {status.epoch}"),
        ("Nodes", f"{nodes}, {status.standby_nodes} standby"),
        *(counts if status.wanted_replicas else [("Replicas", size)]),
        ("Step", _step(status)),
        ("Checkpoints", _checkpoints(status)),
        ("Loss", f"{status.loss:.4f}" if status.has_loss else "not reported"),
        ("Samples", rate(status.samples_per_second)),
        ("Goodput", _goodput(status)),
        ("Restarts", _restarts(status)),
        ("Budgets", _budgets(status)),
        ("Running for", duration(status.job_seconds)),
    ]
    rows += [(words(one.tier).capitalize(), _interval(one)) for one in status.checkpoint_intervals]
    if status.outer_replicas:
        rows.append(("Synchronise", _roster(status)))
    if status.sync is not None:
        rows.append(("Sync", _sync(status.sync)))
    if status.excluded_nodes:
        rows.append(("Excluded", ", ".join(status.excluded_nodes)))
    known = ((name, _UNKEPT if name in unkept else text) for name, text in rows)
    return "\n".join(f"{name + ':':<13}{clean(text)}" for name, text in known)


def _ranks(status: wire.JobStatus) -> str:
    """Return the processes of the whole job, and how many of them replicas in step have."""
    text = counted(status.world_size, "rank")
    return f"{text}, {status.ranks_in_step} in step" if status.wanted_replicas else text


def _in_step(status: wire.JobStatus) -> str:
    return f"{status.replicas_in_step} of {status.wanted_replicas} in step"


def status_screen(answer: wire.GetJobResponse, unkept: Collection[str] = ()) -> str:
    """Return `holdfast status`: the job, and its replicas where it has some.

    Of many replicas those that are in step are counted.

    Args:
        answer: The master's answer.
        unkept: Lines whose fields are not known any more, because the job has ended.
    """
    text = status_table(answer.status or wire.JobStatus(), unkept)
    if not answer.replicas:
        return text
    shown, in_step = list(answer.replicas), wire.ReplicaState.IN_STEP
    if len(shown) > _SHOWN:
        shown = [one for one in shown if one.state is not in_step]
    header = ("REPLICA", "STATE", "NODES", "RANKS", "ROUND", "STEP")
    rows = [_replica_row(one) for one in shown[:_SHOWN]]
    parts = [text, "", *([columns(header, rows)] if rows else [])]
    left = len(answer.replicas) - len(rows)
    if left:
        parts.append(f"{counted(left, 'more replica')}")
    return "\n".join(parts)


def _replica_row(one: wire.ReplicaInfo) -> tuple[str, ...]:
    nodes = ",".join(map(str, one.node_ranks[:_SHOWN]))
    more = ",…" if len(one.node_ranks) > _SHOWN else ""
    return (
        str(one.number),
        words(one.state),
        nodes + more,
        str(one.ranks),
        str(one.round),
        str(one.step) if one.step else "-",
    )


def _sync(sync: wire.SyncChosen) -> str:
    """Return how replicas have chosen to agree, or would."""
    often = "in each step" if sync.interval <= 1 else f"each {sync.interval} steps"
    if sync.made:
        return f"{often}, chosen at step {sync.step}: {sync.reason}"
    return f"{often} is proposed since step {sync.step}: {sync.reason}"


def _roster(status: wire.JobStatus) -> str:
    """Return the replicas that synchronise with each other."""
    numbers = status.outer_replicas
    more = f" and {len(numbers) - _SHOWN} more" if len(numbers) > _SHOWN else ""
    named = ", ".join(map(str, numbers[:_SHOWN]))
    word = "replica" if len(numbers) == 1 else "replicas"
    return f"{word} {named}{more}, since epoch {status.outer_epoch}"


def nodes_table(nodes: Sequence[wire.NodeInfo]) -> str:
    """Return `holdfast nodes`: a node a line; with verdicts, where nodes were checked."""
    header: tuple[str, ...] = (
        "NODE",
        "STATE",
        "RANKS",
        "STEP",
        "STEP TIME",
        "HOST",
        "AGENT PID",
        "SILENT",
    )
    rows = [_node_row(node) for node in nodes]
    if any(node.replica for node in nodes):
        header = (*header, "REPLICA", "IN STEP")
        rows = [(*row, *_replica_of(node)) for row, node in zip(rows, nodes, strict=True)]
    if any(node.preflight for node in nodes):
        header = (*header, "CHECK")
        rows = [(*row, node.preflight or "-") for row, node in zip(rows, nodes, strict=True)]
    return columns(header, rows)


def _replica_of(node: wire.NodeInfo) -> tuple[str, str]:
    """Return the number of a node's replica, and whether it is in step or its state."""
    if not node.replica:
        return "-", "-"
    in_step = node.replica_state is wire.ReplicaState.IN_STEP
    return str(node.replica), "yes" if in_step else words(node.replica_state)


def history_table(history: Sequence[wire.HostHistory]) -> str:
    """Return `holdfast nodes --history`: each strike a line, under the host with most points."""
    header = ("HOST", "POINTS", "SUSPECT", "AVOIDED", "TIME", "JOB", "NODE", "CAUSE", "TEXT")
    rows = [
        (
            host.host,
            f"{host.points:.2f}",
            "yes" if host.suspect else "no",
            "yes" if host.avoided else "no",
            clock(strike.unix_time) if strike.unix_time else "-",
            "-" if strike.job == NODE_SOURCE else strike.job or "this one",
            str(strike.node_rank) if strike.cause and strike.job != NODE_SOURCE else "-",
            strike.cause or "-",
            strike.text,
        )
        for host in history
        for strike in host.strikes or (wire.NodeStruck(text=host.avoided),)
    ]
    return columns(header, rows) if rows else "nothing spoke against any host"


def events_table(events: Sequence[wire.JobEvent]) -> str:
    """Return `holdfast events`: an event a line, oldest first."""
    header = ("TIME", "LEVEL", "ROUND", "NODE", "REASON", "TEXT")
    rows = [
        (
            clock(event.unix_time),
            event.severity.name.capitalize(),
            str(event.round) if event.round else "-",
            event.node or "-",
            event.reason,
            event.text,
        )
        for event in events
    ]
    return columns(header, rows)


def goodput_table(goodput: wire.GetGoodputResponse) -> str:
    """Return `holdfast goodput`: classes, then incidents with what they cost."""
    total = goodput.node_seconds or 1.0
    classes = [
        (words(entry.kind), f"{entry.node_seconds:.1f}", f"{entry.node_seconds / total:.1%}")
        for entry in sorted(goodput.totals, key=lambda entry: -entry.node_seconds)
        if entry.node_seconds > 0
    ]
    text = columns(("CLASS", "NODE-SECONDS", "SHARE"), classes)
    if goodput.goodput_assumed:
        text += f"\nproductive: {ASSUMED}"
    if goodput.incidents:
        text += "\n\n" + incidents_table(goodput.incidents)
    return text


def incidents_table(incidents: Sequence[wire.Incident]) -> str:
    """Return one line for each incident: its kind, and the seconds of its phases.

    A dash: the phase was not reached, because another incident came first. `not seen`: no rank
    reports steps. With a tilde: guessed from collectives.
    """
    header: tuple[str, ...] = (
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
    rows = [_incident_row(incident) for incident in incidents]
    if any(incident.lost_replicas for incident in incidents):
        header = (*header, "REPLICAS STOPPED")
        rows = [(*row, stopped(one) or "-") for row, one in zip(rows, incidents, strict=True)]
    return columns(header, rows)


def words(member: enum.Enum) -> str:
    """Return `rolled back` for GoodputClass.ROLLED_BACK."""
    return member.name.lower().replace("_", " ")


def _interval(one: wire.CheckpointInterval) -> str:
    steps = "step" if one.every == 1 else f"{one.every} steps"
    often = f"saved every {steps}" if one.every else "no saves of its own"
    return f"{often}: {one.reason}"


def _restarts(status: wire.JobStatus) -> str:
    return (
        f"{status.restarts_in_place} in place, {counted(status.nodes_replaced, 'node')} replaced, "
        f"{status.nodes_disrupted} disrupted, {counted(status.rescales, 'rescale')}"
    )


def _budgets(status: wire.JobStatus) -> str:
    spent = [f"{words(state.kind)} {state.used}/{state.limit}" for state in status.budgets]
    return ", ".join(spent) or "untouched"


def _node_row(node: wire.NodeInfo) -> tuple[str, ...]:
    ranks = ",".join(str(rank.rank) for rank in node.ranks) or "-"
    step = min((rank.step for rank in node.ranks), default=0)
    guess = "~" if any(rank.step_guessed for rank in node.ranks) else ""
    slowest = max((rank.step_seconds for rank in node.ranks), default=0.0)
    return (
        str(node.node_rank),
        "Unfit" if node.unfit and node.state in _WAITING else node.state.name.capitalize(),
        ranks,
        f"{guess}{step}" if node.ranks else "-",
        duration(slowest) if node.ranks else "-",
        node.host or "-",
        str(node.agent_pid) if node.agent_pid else "-",
        duration(node.silent_seconds) if node.agent_pid else "-",
    )


def step_number(status: wire.JobStatus) -> str:
    """Return the step that all ranks have completed; a guess has a tilde."""
    return f"{'~' if status.step_guessed else ''}{status.step}"


def _step(status: wire.JobStatus) -> str:
    step = step_number(status)
    text = f"{step}, {duration(status.step_seconds)} each" if status.step_seconds > 0 else step
    return f"{text} (guessed from collectives of this round)" if status.step_guessed else text


def share(goodput: float, digits: int = 1, *, assumed: bool) -> str:
    """Return the goodput in percent; a guess has a tilde."""
    return f"{'~' if assumed else ''}{goodput:.{digits}%}"


def _goodput(status: wire.JobStatus) -> str:
    text = share(status.goodput, assumed=status.goodput_assumed)
    return f"{text} ({ASSUMED})" if status.goodput_assumed else text


def _checkpoints(status: wire.JobStatus) -> str:
    """Return the newest step of each tier."""
    tiers = [(status.stored_step, "on storage"), (status.memory_step, "in memory")]
    return ", ".join(f"step {step} {where}" for step, where in tiers if step) or "none yet"


def _first_step(incident: wire.Incident) -> str:
    if incident.first_step_unseen:
        return "not seen"
    guess = "~" if incident.first_step_guessed else ""
    return f"{guess}{duration(incident.first_step_seconds)}" if incident.first_step_seconds else "-"


def _incident_row(incident: wire.Incident) -> tuple[str, ...]:
    culprit = f"node {incident.culprit_node}" if incident.culprit_node else "-"
    if incident.culprit_rank:
        culprit += f" rank {incident.culprit_rank}"
    charged = words(incident.charged) if incident.charged else "none"
    return (
        clock(incident.opened_unix),
        incident.cause,
        culprit,
        "open" if incident.open else charged,
        duration(incident.detection_seconds),
        duration(incident.decided_seconds) if incident.to_round else "-",
        duration(incident.respawned_seconds) if incident.respawned_seconds else "-",
        _first_step(incident),
        counted(incident.steps_redone, "step"),
    )


def stopped(incident: wire.Incident) -> str:
    """Return how much of a job of replicas an incident stopped; empty: it is one world."""
    if not incident.lost_replicas:
        return ""
    if not incident.going_replicas:
        return "all"
    whole = len(incident.lost_replicas) + incident.going_replicas
    return f"{len(incident.lost_replicas)} of {whole}"


def health_screen(health: wire.GetHealthResponse) -> str:
    """Return `holdfast health`: verdicts, then each rank with its lag as a bar."""
    hang = [_hang(health.hang)] if health.hang is not None else []
    parts = [_judged(health), *hang, *(_verdict(one) for one in health.slow)]
    if health.ranks:
        rows = [_rank_row(one, health.step_seconds) for one in health.ranks]
        header: tuple[str, ...] = ("RANK", "NODE", "STEP", "LOCAL", "LAG", "")
        if any(one.replica for one in health.ranks):
            header = ("REPLICA", *header)
            rows = [(str(one.replica), *row) for one, row in zip(health.ranks, rows, strict=True)]
        parts.append(columns(header, rows))
    return "\n".join(parts)


def _judged(health: wire.GetHealthResponse) -> str:
    if health.not_judged:
        return f"Nobody is judged: {health.not_judged}"
    step = f"round {health.round}, {health.step_seconds:.3g} s a step"
    found = "nobody is slow" if not health.slow else f"{len(health.slow)} slow"
    return f"{found} ({step}, {counted(health.windows, 'window')} judged)"


def _hang(one: wire.HangStatus) -> str:
    seen = f"for {one.seconds:.0f} s"
    if not one.cause:
        return f"HANG  the ranks are asked what they do: {clean(one.text)} ({seen})"
    where = " on ".join(f"{what} {', '.join(map(str, of))}" for what, of in _places(one))
    cause = f"{one.cause}: {where}" if where else one.cause
    return f"HANG  {cause} ({seen})\n  {clean(one.text)}"


def _places(one: wire.HangStatus) -> list[tuple[str, tuple[int, ...]]]:
    named = (("rank", one.ranks), ("node", one.nodes))
    return [(what if len(of) == 1 else f"{what}s", of) for what, of in named if of]


def _verdict(one: wire.SlowVerdict) -> str:
    lost = f"  costs {one.lost_node_seconds_per_hour:.0f} node-seconds an hour"
    causes = [f"  {clean(text)}" for text in one.considered]
    return "\n".join([f"SLOW  {clean(one.text)}", lost, *causes])


def _rank_row(one: wire.RankHealth, step: float) -> tuple[str, ...]:
    guessed = "~" if one.step_guessed else ""
    known = one.local_seconds > 0
    lag = one.lag_seconds / step if step else 0.0
    return (
        str(one.rank),
        str(one.node_rank),
        f"{guessed}{one.step}",
        f"{one.local_seconds:.3g} s" if known else "-",
        f"{lag:+.1%}" if known else "-",
        "#" * min(BAR, round(BAR * max(0.0, lag) / FULL)),
    )
