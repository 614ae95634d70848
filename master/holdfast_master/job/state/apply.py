"""Application of the journal's records to the durable state: one function per kind of fact."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable
from typing import Any, Final

from holdfast_master.job.state import snapshot
from holdfast_master.job.state.job_state import (
    ANSWERED,
    DRAINING,
    FINISHED,
    PROMISED,
    RELEASED,
    REPLACED,
    JobState,
)
from holdfast_master.job.state.phases import ENDED
from holdfast_master.policies import failure_rate, node_history
from holdfast_master.policies.data import ledger, ledger_message
from holdfast_master.policies.goodput import from_entries
from holdfast_wire import messages as wire
from holdfast_wire.reasons import Cause


def apply(state: JobState, record: wire.JournalRecord) -> None:
    """Apply one record; a fact of an unknown kind, or none, changes the sequence only."""
    state.sequence, state.job_seconds = record.sequence, record.job_seconds
    state.unix_time = record.unix_time
    change = _CHANGES.get(type(record.fact))
    if change is not None:
        change(state, record.fact)


def _segment_opened(state: JobState, fact: wire.SegmentOpened) -> None:
    state.epoch = fact.epoch
    state.started_unix = state.started_unix or state.unix_time


def _node_joined(state: JobState, fact: wire.NodeJoined) -> None:
    _unmark(state, fact.node_rank)
    state.counted_unix[fact.node_rank] = state.unix_time
    state.nodes[fact.node_rank] = fact


def _node_gone(state: JobState, fact: wire.NodeGone) -> None:
    known = state.nodes.get(fact.node_rank)
    if known is None or known.agent_id != fact.agent_id:
        return
    state.departed[fact.node_rank] = state.nodes.pop(fact.node_rank)
    for one in state.ledgers.values():
        one.node_gone(fact.node_rank)
    _unmark(state, fact.node_rank)
    for number in [n for n, c in state.commands.items() if c.node_rank == fact.node_rank]:
        if state.commands[number].kind != "replace":
            del state.commands[number]


def _unmark(state: JobState, rank: int) -> None:
    state.draining.discard(rank)
    state.preempted.discard(rank)
    state.released.discard(rank)


def _node_marked(state: JobState, fact: wire.NodeMarked) -> None:
    if fact.mark in {RELEASED, REPLACED}:
        state.dismissed[fact.agent_id] = fact.mark
    if fact.mark == PROMISED:
        (state.promised.add if fact.value else state.promised.discard)(fact.agent_id)
        return
    known = state.nodes.get(fact.node_rank)
    if known is None or known.agent_id != fact.agent_id or fact.mark == REPLACED:
        return
    marks = {DRAINING: state.draining, FINISHED: state.finished, RELEASED: state.released}
    if fact.mark == DRAINING and fact.value and fact.cause == Cause.PREEMPTED:
        state.preempted.add(fact.node_rank)
    (marks[fact.mark].add if fact.value else marks[fact.mark].discard)(fact.node_rank)


def _node_excluded(state: JobState, fact: wire.NodeExcluded) -> None:
    state.excluded.pop(fact.node, None)  # excluded again, it is the newest
    if not fact.lifted:
        state.excluded[fact.node] = fact.reason


def _references_learned(state: JobState, fact: wire.ReferencesLearned) -> None:
    state.reference_levels |= {level.key: level for level in fact.levels}
    state.node_references |= {node.node: node for node in fact.nodes}
    for node in fact.forgotten:
        state.node_references.pop(node, None)


def _node_struck(state: JobState, fact: wire.NodeStruck) -> None:
    if fact.withdrawn:
        # It stays, for an operator that was not there when it was taken back.
        given = dataclasses.replace(fact, withdrawn=False)
        state.strikes[:] = [fact if one == given else one for one in state.strikes]
        return
    state.strikes.append(fact)
    del state.strikes[: -node_history.KEPT]


def _world_decided(state: JobState, fact: wire.WorldDecided) -> None:
    state.round = fact.round
    state.world = fact
    state.last_replica = max([state.last_replica, *(one.number for one in fact.replicas)])
    _keep_trained(state, fact)
    _return_shards(state, fact)
    if not _going_on(fact):
        state.sync = None  # all ranks begin with their script's settings
    if fact.store_port == 0:
        return
    state.assigned_replicas = state.spec.replicas if state.spec else 0
    _count_change(state, state.assigned, fact)
    if state.schedule is not None and _saves_now(fact) != _saves_now(state.assigned):
        # Another replica saves, which may have begun in the same round.
        state.schedule = dataclasses.replace(state.schedule, round=0)
    state.assigned = fact
    state.training, state.ended = False, False
    state.finished &= _going_on(fact)
    if state.trains_since is None and _trains_on(state, fact):
        state.trains_since = state.job_seconds


def _return_shards(state: JobState, fact: wire.WorldDecided) -> None:
    """Return the leases of readers whose processes do not go on."""
    for one in state.ledgers.values():
        one.follow(fact, state.nodes)


def _keep_trained(state: JobState, fact: wire.WorldDecided) -> None:
    """Have the rounds in which replicas began count as the newest: they are asked for as long."""
    for number in sorted({one.round for one in fact.replicas} & state.trained_rounds.keys()):
        state.trained_rounds[number] = state.trained_rounds.pop(number)


def _trains_on(state: JobState, fact: wire.WorldDecided) -> bool:
    """Whether replicas of this world have trained before it, and go on."""
    older = (one.round for one in fact.replicas if one.round < fact.round)
    return any(state.trained_rounds.get(number, False) for number in older)


def _going_on(fact: wire.WorldDecided) -> set[int]:
    """The node ranks of replicas whose processes began before this world."""
    members = iter(fact.members)
    own = [(one, list(itertools.islice(members, one.nodes))) for one in fact.replicas]
    return {m.node_rank for one, nodes in own if one.round < fact.round for m in nodes}


def _saves_now(world: wire.WorldDecided | None) -> int:
    """The number of the replica whose checkpoints are the job's; 0: there is none."""
    return world.replicas[0].number if world is not None and world.replicas else 0


def _count_change(
    state: JobState, before: wire.WorldDecided | None, after: wire.WorldDecided
) -> None:
    """Count a restart in place, a rescale or replaced nodes from one world to the next."""
    if before is None:
        return
    left = len(_who(before.members) - _who(after.members))
    came = len(_who(after.members) - _who(before.members))
    if len(before.members) != len(after.members):
        state.rescales += 1
    elif not came:
        state.restarts_in_place += 1
    # The others may have trained on without the node: its place stays vacant until then.
    filled = min(came, state.vacant + left)
    state.nodes_replaced += filled
    wanted = max(0, state.assigned_replicas - len(after.members))
    state.vacant = min(state.vacant + left - filled, wanted)


def _who(members: tuple[wire.WorldMember, ...]) -> set[tuple[int, str]]:
    return {(member.node_rank, member.agent_id) for member in members}


def _world_training(state: JobState, fact: wire.WorldTraining) -> None:
    if state.assigned is None or fact.round != state.assigned.round:
        return
    state.training = True
    _assume(state, fact)
    state.trains_since = state.job_seconds if state.trains_since is None else state.trains_since
    state.trained_rounds[fact.round] = True
    state.trim()
    state.best_step = max(state.best_step, fact.step)
    if fact.guessed:
        state.steps_guessed, state.guessed_round = True, fact.round
    # Where steps are guessed, processes that run are no progress yet.
    if state.is_progress(fact.step, trained=fact.guessed or not state.steps_guessed):
        state.charges = [c for c in state.charges if c.kind is not wire.BudgetKind.NO_PROGRESS]


def _assume(state: JobState, fact: wire.WorldTraining) -> None:
    """Note whether the world's time counts as productive although nobody has reported a step."""
    if fact.step == 0:
        alone = not state.goodput_assumed or state.assumed_round == fact.round
        state.goodput_assumed, state.assumed_round = True, fact.round if alone else 0
    elif fact.start_seen and state.assumed_round == fact.round:
        state.goodput_assumed, state.assumed_round = False, 0


def _world_ended(state: JobState, fact: wire.WorldEnded) -> None:
    state.ended = True
    if state.trains_since is not None:
        state.trained_seconds += max(0.0, state.job_seconds - state.trains_since)
        state.trains_since = None
    state.ended_steps[fact.round] = fact.step
    if fact.stepless:
        state.steps_guessed = state.stepless_rounds[fact.round] = True
    state.trim()
    state.best_step = max(state.best_step, fact.step)


def _incident(state: JobState, fact: wire.Incident) -> None:
    if fact.id not in state.incidents:
        state.incident_count += 1
        failed = state.assigned
        if failed and failed.round == fact.from_round and _trains_on(state, failed):
            state.trained_rounds[failed.round] = True  # though newer replicas had not begun
    state.incidents[fact.id] = fact
    if not fact.open and fact.charged in {wire.BudgetKind.FAILURES, wire.BudgetKind.NO_PROGRESS}:
        step = state.ended_steps.get(fact.from_round, 0)
        state.failed_step = max(state.failed_step or 0, step)
    counts = not (fact.open or fact.reported_only)
    if counts and state.trained_rounds.get(fact.from_round, False):
        _count_failure(state, fact)
    state.trim()


def _count_failure(state: JobState, fact: wire.Incident) -> None:
    """Count a failure of a world that trained; where all ranks had saved, it was none."""
    kinds = {entry.kind for entry in fact.cost}
    if wire.GoodputClass.RESCALE in kinds and wire.GoodputClass.RESTART not in kinds:
        return
    tier = failure_rate.counts(fact.cause)
    if tier is not None:
        state.tier_failures[tier] = state.tier_failures.get(tier, 0) + 1


def _budget_charged(state: JobState, fact: wire.BudgetCharge) -> None:
    state.charges.append(fact)
    if fact.kind is wire.BudgetKind.PREEMPTIONS:
        state.nodes_disrupted += 1


def _event_recorded(state: JobState, fact: wire.EventRecorded) -> None:
    if fact.event is None:
        return
    state.event_sequence = fact.event.sequence
    state.events.append(fact.event)


def _phase_changed(state: JobState, fact: wire.PhaseChanged) -> None:
    if state.phase is wire.JobPhase.SUSPENDED and fact.phase is wire.JobPhase.WAITING:
        state.active_since = state.job_seconds
    state.phase, state.reason, state.text = fact.phase, fact.reason, fact.text
    if fact.phase in ENDED:
        state.finished_unix = state.unix_time


def _command_issued(state: JobState, fact: wire.CommandIssued) -> None:
    if fact.kind in ANSWERED:
        state.commands[fact.command_id] = fact
    state.next_command_id = max(state.next_command_id, fact.command_id + 1)


def _goodput_marked(state: JobState, fact: wire.GoodputMarked) -> None:
    for node in fact.nodes:
        state.counted_unix[node.node_rank] = state.unix_time
        state.goodput[node.node_rank] = from_entries(node.classes)


def _checkpoint_committed(state: JobState, fact: wire.CheckpointCommitted) -> None:
    if state.stored is None or (fact.version is not None and state.stored <= fact.version):
        state.checkpoint = fact


def _outer_roster(state: JobState, fact: wire.OuterRoster) -> None:
    if state.roster is not None and not {*state.roster.replicas} & {*fact.replicas}:
        state.sync = None  # nobody is left that could have given the choice to others
    state.roster = fact
    # A new master may find replicas that its journal does not know.
    state.last_replica = max([state.last_replica, *fact.replicas])


def _readers_joined(state: JobState, fact: wire.ReadersJoined) -> None:
    found, group = state.ledgers.get(fact.dataset), fact.group
    if found is not None and group is not None:
        found.join(ledger.Group(group.replica, group.round), group.readers)


def _readers_ended(state: JobState, fact: wire.ReadersEnded) -> None:
    found, group = state.ledgers.get(fact.dataset), fact.group
    if found is not None and group is not None:
        told = dict(zip(fact.ranks, fact.lost, strict=True))
        found.end_reading(ledger.Group(group.replica, group.round), told)


def _shards_given(state: JobState, fact: wire.ShardsGiven) -> None:
    found = state.ledgers.get(fact.dataset)
    if found is None:
        return
    for one in fact.leases:
        found.lease(ledger_message.reader_of(one.reader), one.request, one.ordinals)


def _shards_committed(state: JobState, fact: wire.ShardsCommitted) -> None:
    found = state.ledgers.get(fact.dataset)
    if found is None:
        return
    for one in fact.readers:
        positions = {each.ordinal: each.position for each in one.positions}
        found.commit(ledger_message.reader_of(one.reader), one.step, positions, one.done)


def _newest(field: str) -> Callable[[JobState, Any], None]:
    """Return the change of a fact that takes the place of the one before."""
    return lambda state, fact: setattr(state, field, fact)


_CHANGES: Final[dict[type, Callable[[JobState, Any], object]]] = {
    wire.SegmentOpened: _segment_opened,
    wire.SpecAccepted: lambda state, fact: setattr(state, "spec", fact.spec),
    wire.NodeJoined: _node_joined,
    wire.NodeGone: _node_gone,
    wire.NodeMarked: _node_marked,
    wire.NodeExcluded: _node_excluded,
    wire.NodeJudged: lambda state, fact: state.judged.update({fact.node_rank: fact}),
    wire.ReferencesLearned: _references_learned,
    wire.NodeStruck: _node_struck,
    wire.StragglerTrial: lambda state, fact: state.straggler_trials.update({fact.round: fact}),
    wire.WorldDecided: _world_decided,
    wire.WorldTraining: _world_training,
    wire.WorldEnded: _world_ended,
    wire.Incident: _incident,
    wire.BudgetCharge: _budget_charged,
    wire.EventRecorded: _event_recorded,
    wire.PhaseChanged: _phase_changed,
    wire.CommandIssued: _command_issued,
    wire.CommandFinished: lambda state, fact: state.commands.pop(fact.command_id, None),
    wire.GoodputMarked: _goodput_marked,
    wire.StopRequested: _newest("stop"),
    wire.CheckpointCommitted: _checkpoint_committed,
    wire.ScheduleConfirmed: _newest("schedule"),
    wire.OuterRoster: _outer_roster,
    wire.SyncChosen: _newest("sync"),
    wire.ShardLedger: lambda state, fact: state.ledgers.update(
        {fact.name: ledger_message.of_message(fact)}
    ),
    wire.ReadersJoined: _readers_joined,
    wire.ReadersEnded: _readers_ended,
    wire.ShardsGiven: _shards_given,
    wire.ShardsCommitted: _shards_committed,
    wire.JobFolded: snapshot.load,
}
