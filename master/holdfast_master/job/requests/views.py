"""Views of a job for people and programs."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import Final

from holdfast_master.job.checkpoints import interval
from holdfast_master.job.health import health_view
from holdfast_master.job.incidents import incidents
from holdfast_master.job.nodes import eligibility
from holdfast_master.job.requests import replica_views
from holdfast_master.job.state.context import JobContext
from holdfast_master.job.state.job_state import RELEASED, JobState
from holdfast_master.job.state.membership import Node
from holdfast_master.job.state.phases import BEGINNING, ENDED
from holdfast_master.job.state.timers import Timer
from holdfast_master.job.state.world import World
from holdfast_master.job.worlds import flush, replicas
from holdfast_master.policies import failure
from holdfast_master.policies.goodput import entries, ratio, summed
from holdfast_master.policies.guessed_steps import is_guess
from holdfast_master.policies.quantities import counted, in_words, verb
from holdfast_wire import messages as wire
from holdfast_wire.reasons import PhaseReason

_ENDED: Final = ENDED | {wire.JobPhase.SUSPENDED}
_STILL_SECONDS: Final = 3.0
"""s: least time without a step after which people read that replicas wait."""
_STILL_STEPS: Final = 3.0
"""The same in steps of usual length."""


def status(job: JobContext) -> wire.JobStatus:
    """The whole small truth about the job."""
    state, spec = job.state, job.spec
    world = replica_views.shown_world(job)
    active = replica_views.active(job, world) if world else ()
    members = _members(job, world or job.worlds.assigned)
    found = replica_views.states(job, world)
    in_step = [one for one, its in found.items() if its is wire.ReplicaState.IN_STEP]
    phase, reason, text = _phase(job)
    health, health_text = health_view.summary(job)
    loss = next((item.loss for node in members[:1] for item in node.ranks[:1]), 0.0)
    step = _step(job, members)
    guess = 0 if step else _guess(members)
    return wire.JobStatus(
        name=job.identity.job_name,
        uid=job.identity.job_uid,
        phase=phase,
        reason=reason,
        text=text,
        epoch=job.identity.epoch,
        round=state.round,
        world_size=replica_views.ranks_of(world, active),
        active_nodes=len(active),
        ready_nodes=len(job.membership.candidates),
        standby_nodes=len(job.membership.spares) if world else 0,
        replicas=spec.replicas,
        min_replicas=spec.min_replicas,
        max_replicas=spec.max_replicas,
        step=step or guess,
        step_guessed=guess > 0,
        memory_shortages=_shortages(state),
        step_seconds=world.step_seconds if world else 0.0,
        loss=loss,
        has_loss=loss != 0.0,
        samples_per_second=_rate(world, members),
        restarts_in_place=state.restarts_in_place,
        nodes_replaced=state.nodes_replaced,
        nodes_disrupted=state.nodes_disrupted,
        rescales=state.rescales,
        budgets=_budgets(job),
        goodput=ratio(job.ledger.whole(job.clock.micros)),
        started_unix=state.started_unix,
        finished_unix=state.finished_unix,
        excluded_nodes=tuple(state.excluded),
        generation=spec.generation,
        job_seconds=job.clock.job_seconds,
        degraded_progress=world is not None and world.training and not world.sdk_ranks,
        stored_step=state.stored.step if state.stored else 0,
        memory_step=flush.memory_step(job),
        checkpoint_intervals=interval.intervals(job),
        goodput_assumed=state.goodput_assumed,
        health=health,
        health_text=health_text,
        outer_replicas=state.named_replicas,
        outer_epoch=state.roster.epoch if state.roster else 0,
        sync=job.state.sync,
        replicas_in_step=len(in_step),
        ranks_in_step=sum(_ranks_of_replica(world, number) for number in in_step),
        wanted_replicas=replica_views.wanted(job),
    )


def _ranks_of_replica(world: World | None, number: int) -> int:
    return replica_views.ranks_of(world, world.by_replica[number]) if world else 0


def _phase(job: JobContext) -> tuple[wire.JobPhase, str, str]:
    """The phase with its reason and text: replicas that train on make a job train.

    The core's own phase is of the newest world, in which others may only begin.
    """
    state, world = job.state, job.worlds.assigned
    if world is not None and state.phase in BEGINNING:
        going = replicas.going(job)
        trains = [one for one in going if replica_views.synchronises(job, world, one.number)]
        if trains:
            count = f"{len(trains)} of {counted(len(world.replicas), 'replica')}"
            text = f"{count} {verb(len(trains), 'trains', 'train')} on; {state.text}"
            return wire.JobPhase.TRAINING, PhaseReason.TRAINING, text
    return state.phase, state.reason, _text(job)


def _text(job: JobContext) -> str:
    """The phase's reason in words; with too few nodes, also the time until the job fails."""
    text = job.state.text
    if job.state.phase is wire.JobPhase.TRAINING:
        found = replica_views.states(job, job.worlds.running())
        text = replica_views.text(job, found) if found else text
    if still := _standing_still(job):
        return f"{text}; {still}"
    due = job.timers.due(Timer.BELOW_MIN)
    if due is None or job.state.reason != PhaseReason.WAITING_FOR_NODES:
        return text
    left = in_words(max(0.0, due - job.now))
    return f"{text}; the job fails in {left} (belowMinTimeoutSeconds)"


def _standing_still(job: JobContext) -> str:
    """Return the replica that has stood still the longest, where all of the roster do.

    One of them keeps the others waiting, and is not put out yet. Empty: they go on.
    """
    world = job.worlds.running()
    if world is None or job.state.phase is not wire.JobPhase.TRAINING:
        return ""
    still: dict[int, tuple[float, int]] = {}
    for one in world.replicas:
        if replica_views.synchronises(job, world, one.number):
            times = [
                (item.since_step_seconds + job.now - node.ranks_at, item.step)
                for node, item in job.membership.reports(world.members_of(one))
            ]
            still[one.number] = max(times, default=(0.0, 0))
    if len(still) < 2:
        return ""
    (least, _), longest = min(still.values()), max(still, key=lambda number: still[number])
    if least < max(_STILL_SECONDS, _STILL_STEPS * world.step_seconds):
        return ""
    seconds, step = still[longest]
    return (
        f"no replica has completed a step for {least:.0f} s, replica {longest} not for the longest "
        f"time: {seconds:.0f} s, since step {step}"
    )


def _members(job: JobContext, world: World | None) -> list[Node]:
    """Present members in rank order; of replicas those that synchronise, if any does."""
    if world is None:
        return []
    trains = [
        rank
        for one in world.replicas
        if replica_views.synchronises(job, world, one.number)
        for rank in world.members_of(one)
    ]
    return job.membership.present(trains or world.places)


def _rate(world: World | None, members: list[Node]) -> float:
    """Samples a second of this round: what a node said last may be about the one before."""
    if world is None:
        return 0.0
    places = world.places
    return sum(
        [
            node.samples_per_second
            for node in members
            if node.ranks and node.ranks[0].round == places[node.rank].replica.round
        ]
    )


def _step(job: JobContext, members: list[Node]) -> int:
    """Newest step that all ranks are known to have completed; until one is known, that of before.

    A world that starts from a checkpoint has that one's step before it completes the next.
    """
    world = job.worlds.newest
    steps = [node.step for node in members if node.ranks]
    if not steps or len(steps) < len(members):
        return _step_at_end(job)
    least = max(min(steps), world.first_step if world else 0)
    if least or world is None:
        return least
    restored = _restored(job, world)
    return job.state.best_step if restored is None else restored


def first_step(job: JobContext) -> int:
    """Step that the newest world began with, before its own first one; 0: none is known."""
    world = job.worlds.newest
    return max(world.first_step - 1, _restored(job, world) or 0) if world is not None else 0


def _step_at_end(job: JobContext) -> int:
    """Step at which the last world has ended; the best one while another starts.

    After a rollback that is less than the best.
    """
    state, world = job.state, job.worlds.newest
    if state.phase not in _ENDED or state.assigned is None or (world and world.replicas):
        return state.best_step
    return state.ended_steps.get(state.assigned.round, 0) or state.best_step


def _shortages(state: JobState) -> tuple[wire.MemoryShortage, ...]:
    """The largest limit of each node rank with which a rank of it ran out of memory."""
    largest: dict[int, int] = {}
    for fact in state.incidents.values():
        if fact.memory_limit_bytes and fact.culprit_node:
            rank = int(fact.culprit_node)
            largest[rank] = max(largest.get(rank, 0), fact.memory_limit_bytes)
    return tuple(
        wire.MemoryShortage(node_rank=rank, limit_bytes=limit)
        for rank, limit in sorted(largest.items())
    )


def _guess(members: list[Node]) -> int:
    """The guessed step that all ranks have completed in this world; 0: none is known."""
    if not all(node.ranks for node in members):
        return 0
    ranks = [item for node in members for item in node.ranks]
    return min(item.step for item in ranks) if ranks and all(map(is_guess, ranks)) else 0


def _restored(job: JobContext, world: World) -> int | None:
    """The step that a world starts from; None: it is not decided, or the script decides."""
    tracker = job.checkpoints.tracker
    if world.replicas:
        tracker = job.checkpoints.starts.get(world.replicas[0].number, tracker)
    origin = tracker.origin if tracker.round == world.saver_round else None
    if origin is None or not origin.go:
        return None
    return origin.version.step if origin.version is not None else 0


def _budgets(job: JobContext) -> tuple[wire.BudgetState, ...]:
    balances = [incidents.balance(job, kind) for kind in failure.CHARGEABLE]
    return tuple(
        wire.BudgetState(
            kind=item.kind, used=item.used, limit=item.limit, window_seconds=item.window
        )
        for item in balances
        if item.limit is not None
    )


def nodes(job: JobContext) -> tuple[wire.NodeInfo, ...]:
    """Every present or expected node, in node rank order."""
    spec = job.spec
    expected = set(range(job.wanted)) if spec.generation else set()
    ended = job.state.phase in _ENDED
    ranks = sorted(set(job.membership.nodes) | (set() if ended else expected))
    world = replica_views.shown_world(job)
    active = set(replica_views.active(job, world)) if world else set[int]()
    found = replica_views.states(job, world)
    return tuple(_node(job, rank, world if rank in active else None, found) for rank in ranks)


def _node(
    job: JobContext, rank: int, world: World | None, found: Mapping[int, wire.ReplicaState]
) -> wire.NodeInfo:
    node = job.membership.nodes.get(rank)
    if node is None:
        return wire.NodeInfo(node_rank=rank, state=_absent(job, rank))
    place = world.places.get(rank) if world and world.holds(rank, node.agent_id) else None
    number = place.replica.number if place else 0
    hello = node.hello
    known = job.state.nodes.get(rank)
    preflight, reason = _preflight(job, node)
    return wire.NodeInfo(
        node_rank=rank,
        pod_uid=node.pod_uid,
        agent_id=node.agent_id,
        host=hello.host if hello else (known.host if known else ""),
        address=hello.address if hello else (known.address if known else ""),
        agent_pid=hello.agent_pid if hello else 0,
        state=_state(job, node, world),
        group_rank=place.group_rank if place else 0,
        base_rank=place.base_rank if place else 0,
        local_world_size=node.local_world_size,
        silent_seconds=max(0.0, job.now - node.last_heard),
        ranks=_ranks(node, place.base_rank) if place else (),
        version=hello.version if hello else "",
        cold_reason=node.cold_reason,
        preflight=preflight,
        preflight_reason=reason,
        replica=number,
        replica_state=found.get(number, wire.ReplicaState.UNSPECIFIED),
        unfit=eligibility.is_kept_out(job.state, node),
    )


def _preflight(job: JobContext, node: Node) -> tuple[str, str]:
    """The verdict of the check before the node joined, in a word, and its reason."""
    if job.preflight.checks(node.rank, node.agent_id):
        return "checking", ""
    judged = job.state.judged_agent(node.rank, node.agent_id)
    return ("", "") if judged is None else (judged.verdict.lower(), judged.reason)


def _absent(job: JobContext, rank: int) -> wire.NodeState:
    """The state of an expected node that is not there."""
    gone = job.state.departed.get(rank)
    if gone is None:
        return wire.NodeState.MISSING
    if rank in job.state.finished:
        return wire.NodeState.FINISHED
    if job.state.dismissed.get(gone.agent_id) != RELEASED:
        return wire.NodeState.LOST
    coming = rank in job.operator.replacing or job.operator.is_coming(rank)
    return wire.NodeState.MISSING if coming else wire.NodeState.DRAINED


def _state(job: JobContext, node: Node, world: World | None) -> wire.NodeState:
    state = job.state
    if node.session is None:
        return wire.NodeState.DISCONNECTED
    if node.rank in state.draining or node.rank in state.released:
        return wire.NodeState.DRAINING
    if world is not None and world.has(node):
        return wire.NodeState.FINISHED if node.rank in world.finished else wire.NodeState.ACTIVE
    if not node.warm:
        return wire.NodeState.WARMING
    return wire.NodeState.READY if job.worlds.running() is None else wire.NodeState.STANDBY


def _ranks(node: Node, base: int) -> tuple[wire.RankInfo, ...]:
    return tuple(
        wire.RankInfo(
            rank=base + item.local_rank,
            local_rank=item.local_rank,
            pid=item.pid,
            step=item.step,
            step_seconds=item.step_seconds,
            since_step_seconds=item.since_step_seconds,
            loss=item.loss,
            section=item.section.name,
            has_sdk=item.has_sdk,
            step_guessed=is_guess(item),
        )
        for item in node.ranks
    )


def events_after(state: JobState, sequence: int, limit: int) -> tuple[wire.JobEvent, ...]:
    """Events after this sequence, oldest first, at most `limit`."""
    events = state.events
    if not events:
        return ()
    skip = max(0, sequence + 1 - events[0].sequence)
    # A deque is slow in its middle: its newest events are asked for, so go from that end.
    newest = list(itertools.islice(reversed(events), max(0, len(events) - skip)))
    return tuple(newest[::-1][: max(0, limit)])


def listed_incidents(job: JobContext) -> tuple[wire.Incident, ...]:
    """Every incident that is remembered, oldest first, each with its cost so far."""
    open_now = {
        incident.id: incident.fact(cost=job.ledger.cost(incident.id, job.clock.micros))
        for incident in job.incidents.open()
    }
    return tuple(open_now.get(key, fact) for key, fact in job.state.incidents.items())


def goodput(job: JobContext) -> wire.GetGoodputResponse:
    """Node-seconds by class, whole and by node, and every incident with its cost."""
    totals = job.ledger.totals(job.clock.micros)
    whole = summed(totals.values())
    per_node = tuple(
        wire.NodeGoodput(node_rank=rank, classes=entries(classes))
        for rank, classes in totals.items()
    )
    return wire.GetGoodputResponse(
        totals=entries(whole),
        node_seconds=sum(entry.node_seconds for entry in entries(whole)),
        nodes=per_node,
        incidents=listed_incidents(job),
        goodput=ratio(whole),
        goodput_assumed=job.state.goodput_assumed,
    )
