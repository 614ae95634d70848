"""Facts and inputs in words, and as plain values for JSON. Pure."""

from __future__ import annotations

import dataclasses
import datetime as dt
import enum
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from holdfast_master import inputs
from holdfast_master.instructions import Instruction, Refuse, Reply, Send, SendToOperator
from holdfast_master.policies.quantities import counted, verb
from holdfast_wire import messages as wire
from holdfast_wire.tiers import by_tier, word


def clock(unix_time: float) -> str:
    """Return local date and time to the millisecond."""
    when = dt.datetime.fromtimestamp(unix_time, tz=dt.UTC).astimezone()
    return when.strftime("%Y-%m-%d %H:%M:%S.") + f"{when.microsecond // 1000:03d}"


def kind_of(record: wire.JournalRecord) -> str:
    """The name of the fact."""
    return type(record.fact).__name__ if record.fact is not None else "Nothing"


def fact_line(record: wire.JournalRecord) -> str:
    """Return sequence, time, kind and what the fact says."""
    head = f"{record.sequence:>8}  {clock(record.unix_time)}  {kind_of(record):<16}"
    return f"{head}  {words(record)}".rstrip()


def words(record: wire.JournalRecord) -> str:
    """Return the fact in words, with its reason where it has one."""
    return _FACTS[type(record.fact)](record.fact) if record.fact is not None else ""


def round_of(record: wire.JournalRecord) -> int | None:
    """The round that a fact is about; None: it is about none."""
    fact: Any = record.fact
    if isinstance(fact, wire.WorldDecided | wire.WorldTraining | wire.WorldEnded):
        return fact.round
    if isinstance(fact, wire.EventRecorded) and fact.event is not None:
        return fact.event.round
    return fact.from_round if isinstance(fact, wire.Incident) else None


def incident_of(record: wire.JournalRecord) -> str:
    """The incident that a fact belongs to; empty: none."""
    fact: Any = record.fact
    if isinstance(fact, wire.Incident):
        return fact.id
    if isinstance(fact, wire.EventRecorded) and fact.event is not None:
        return fact.event.incident_id
    return fact.incident_id if isinstance(fact, wire.BudgetCharge) else ""


def plain(value: Any) -> Any:
    """A message as values that JSON knows; enums by name."""
    if isinstance(value, enum.Enum):
        return value.name
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = {f.name: plain(getattr(value, f.name)) for f in dataclasses.fields(value)}
        return {"kind": type(value).__name__, **fields}
    if isinstance(value, tuple | list):
        return [plain(item) for item in value]
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    return value.hex() if isinstance(value, bytes) else value


def _opened(fact: wire.SegmentOpened) -> str:
    what = "base of" if fact.base else f"part {fact.part} of" if fact.part else "begins"
    name = f"{fact.job_name} ({fact.job_uid})"
    return f"{what} epoch {fact.epoch}, master {fact.incarnation}, job {name}, {fact.version}"


def _spec(fact: wire.SpecAccepted) -> str:
    spec = fact.spec
    if spec is None:
        return "no spec"
    size = f"replicas {spec.replicas} (min {spec.min_replicas}, max {spec.max_replicas})"
    return f"generation {spec.generation}: {size}{', suspend' if spec.suspend else ''}"


def _joined(fact: wire.NodeJoined) -> str:
    where = f"{fact.host or fact.address}, {counted(fact.local_world_size, 'rank')}"
    return f"node {fact.node_rank} agent {fact.agent_id} pod {fact.pod_uid or '-'} ({where})"


def _decided(fact: wire.WorldDecided) -> str:
    ranks = ",".join(str(member.node_rank) for member in fact.members)
    store = f", store {fact.store_host}:{fact.store_port}" if fact.store_port else ", no store yet"
    nodes = verb(len(fact.members), "node", "nodes")
    replicas = _seats(fact) if fact.replicas else ""
    return f"round {fact.round} of {nodes} {ranks}{store}{replicas}: {fact.reason}"


def _seats(fact: wire.WorldDecided) -> str:
    """Each replica with the round of its processes and its number of nodes."""
    parts = (f"{one.number} (round {one.round}, {one.nodes})" for one in fact.replicas)
    return f", replicas {', '.join(parts)}"


def _roster(fact: wire.OuterRoster) -> str:
    numbers = ", ".join(map(str, fact.replicas))
    return f"epoch {fact.epoch}: replicas {numbers}, store {fact.store_host}:{fact.store_port}"


def _sync(fact: wire.SyncChosen) -> str:
    verb = "chosen" if fact.made else "proposed"
    steps = f"{counted(fact.interval, 'step')}, before {fact.interval_before}"
    return f"round {fact.round}, step {fact.step}: {verb} a sync each {steps}: {fact.reason}"


def _incident(fact: wire.Incident) -> str:
    culprit = f" node {fact.culprit_node}" if fact.culprit_node else ""
    charged = f"charged to {fact.charged.name}" if fact.charged else "no budget charged"
    state = "open" if fact.open else f"closed, {charged}"
    rounds = f"round {fact.from_round} -> {fact.to_round or '?'}"
    return f"{fact.id} {state}: {fact.cause}{culprit}, {rounds}: {fact.text}"


def _event(fact: wire.EventRecorded) -> str:
    event = fact.event
    if event is None:
        return ""
    node = f"node {event.node}: " if event.node else ""
    incident = f" [{event.incident_id}]" if event.incident_id else ""
    return f"{event.reason}  {node}{event.text}{incident}"


def _stop(fact: wire.StopRequested) -> str:
    how = "now" if fact.now else "at a barrier"
    return f"{'success' if fact.succeeded else 'failure'}, {how}: {fact.reason}"


def _checkpoint(fact: wire.CheckpointCommitted) -> str:
    step = f"step {fact.version.step} of lineage {fact.version.lineage}" if fact.version else "?"
    return f"{step}, {counted(fact.world_size, 'rank')}, in {fact.root}"


def _schedule(fact: wire.ScheduleConfirmed) -> str:
    every = by_tier(fact.intervals).items()
    often = ", ".join(f"{word(tier)} every {steps}" for tier, steps in every)
    return f"from step {fact.step} of round {fact.round} on {often}"


def _trial(fact: wire.StragglerTrial) -> str:
    ranks = ", ".join(map(str, fact.ranks))
    return f"node {fact.node_rank} left round {fact.round} for {ranks}: {fact.outcome.name}"


def _ledger(fact: wire.ShardLedger) -> str:
    readers = counted(sum(one.readers for one in fact.groups), "reader")
    waiting = counted(len(fact.returned), "shard")
    return f"{fact.name}: {readers}, step {fact.newest}, fresh from {fact.fresh} on, {waiting} wait"


def _given(fact: wire.ShardsGiven) -> str:
    given = counted(sum(len(one.ordinals) for one in fact.leases), "shard")
    return f"{fact.dataset}: {given} to {counted(len(fact.leases), 'reader')}"


_FACTS: dict[type, Callable[[Any], str]] = {
    wire.SegmentOpened: _opened,
    wire.SpecAccepted: _spec,
    wire.NodeJoined: _joined,
    wire.NodeGone: lambda fact: f"node {fact.node_rank} agent {fact.agent_id}: {fact.reason}",
    wire.NodeMarked: lambda fact: (
        f"node {fact.node_rank} agent {fact.agent_id} {'' if fact.value else 'not '}{fact.mark}"
    ),
    wire.NodeExcluded: lambda fact: (
        f"{fact.node}{' no more' if fact.lifted else ''}: {fact.reason}"
    ),
    wire.StragglerTrial: _trial,
    wire.WorldDecided: _decided,
    wire.WorldTraining: lambda fact: (
        f"round {fact.round} trains, "
        + ("a step was guessed" if fact.guessed else f"step {fact.step}")
    ),
    wire.WorldEnded: lambda fact: (
        f"round {fact.round} ended after "
        f"{'no guessed step' if fact.stepless else f'step {fact.step}'}: {fact.reason}"
    ),
    wire.Incident: _incident,
    wire.BudgetCharge: lambda fact: f"{fact.kind.name} [{fact.incident_id}]",
    wire.EventRecorded: _event,
    wire.PhaseChanged: lambda fact: f"{fact.phase.name}  {fact.reason}: {fact.text}",
    wire.CommandIssued: lambda fact: f"{fact.command_id} {fact.kind} to node {fact.node_rank}",
    wire.CommandFinished: lambda fact: f"{fact.command_id} {'done' if fact.ok else 'failed'}",
    wire.GoodputMarked: lambda fact: f"accounts of {counted(len(fact.nodes), 'node')}",
    wire.StopRequested: _stop,
    wire.CheckpointCommitted: _checkpoint,
    wire.ScheduleConfirmed: _schedule,
    wire.OuterRoster: _roster,
    wire.SyncChosen: _sync,
    wire.ShardLedger: _ledger,
    wire.ReadersJoined: lambda fact: f"{fact.dataset}: a replica reads, too",
    wire.ReadersEnded: lambda fact: f"{fact.dataset}: what a replica had left is returned",
    wire.ShardsGiven: _given,
    wire.ShardsCommitted: lambda fact: (
        f"{fact.dataset}: progress of {counted(len(fact.readers), 'reader')}"
    ),
    wire.JobFolded: lambda fact: (
        f"state of epoch {fact.epoch}" if fact.first else "more of the state"
    ),
}


def order_lines(orders: Iterable[Instruction]) -> list[str]:
    """Return the instructions, a line for each kind of message with the streams it goes to."""
    streams: dict[str, list[int]] = {}
    others: list[str] = []
    for order in orders:
        if isinstance(order, Send):
            name = type(order.response.message).__name__
            streams.setdefault(name, []).append(order.session)
        elif isinstance(order, SendToOperator):
            others.append(f"{_short(order.response.message)} to the operator")
        elif isinstance(order, Reply | Refuse):
            others.append(f"{type(order).__name__} to request {order.request_id}")
        else:
            others.append(_short(order))
    sent = [f"{name} to stream {_numbers(found)}" for name, found in streams.items()]
    return sent + others


def _numbers(found: list[int]) -> str:
    shown = ", ".join(map(str, sorted(found)[:8]))
    return shown if len(found) <= 8 else f"{shown} and {len(found) - 8} more"


def input_line(event: inputs.Input | None) -> str:
    """Return the core's input; None: its own beginning."""
    return "the master begins" if event is None else _INPUTS[type(event)](event)


def _short(message: Any) -> str:
    shown = ", ".join(
        f"{field.name}={_value(getattr(message, field.name))}"
        for field in dataclasses.fields(message)
        if getattr(message, field.name)
    )
    return f"{type(message).__name__}({shown})"


def _value(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.6g}"
    text = f"{len(value)} items" if isinstance(value, tuple) else str(plain(value))
    return text if len(text) <= 60 else f"{text[:57]}..."


_INPUTS: dict[type, Callable[[Any], str]] = {
    inputs.Connected: lambda e: f"stream {e.session}: node {e.hello.node_rank} says hello",
    inputs.Received: lambda e: f"stream {e.session}: {_short(e.message)}",
    inputs.Disconnected: lambda e: f"stream {e.session} ended: {e.cause.value}",
    inputs.OperatorConnected: lambda _: "the operator connected",
    inputs.OperatorDisconnected: lambda _: "the operator's stream ended",
    inputs.OperatorMessage: lambda e: _OPERATOR[type(e.message)](e.message),
    inputs.UserCall: lambda e: f"{e.who} asks {_short(e.request)}",
    inputs.PeerRefused: lambda e: f"a peer was refused: {e.text}",
    inputs.JournalNoted: lambda e: f"{e.reason}: {e.text}",
    inputs.Ticked: lambda _: "a deadline came",
    inputs.Stalled: lambda e: f"the master stood still for {e.seconds:.1f} s",
}
_OPERATOR: dict[type, Callable[[Any], str]] = {
    wire.MasterSpec: lambda spec: f"spec of generation {spec.generation}",
    wire.PodObservation: lambda pod: f"pod {_short(pod)}",
    wire.PodListDone: lambda _: "every pod was named",
    wire.ScaleResult: lambda result: f"the operator answers {_short(result)}",
    wire.StopRequest: lambda wish: f"the operator wants the end: {wish.reason}",
    wire.ClusterStrikes: lambda told: (
        f"strikes of other jobs on the job's hosts: {len(told.strikes)}"
    ),
}
