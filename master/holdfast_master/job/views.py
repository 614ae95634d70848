"""What people and programs see of a job.

Belongs here: building the answers of JobService from the state. Does not belong here: changing it.
"""

from __future__ import annotations

from holdfast_master.decide import budgets
from holdfast_master.decide.goodput import entries, ratio, summed
from holdfast_master.job import charges, rescue, schedules
from holdfast_master.job.desk import Desk
from holdfast_master.job.roster import Node
from holdfast_master.job.world import World
from holdfast_wire.messages import (
    BudgetState,
    GetGoodputResponse,
    JobEvent,
    JobPhase,
    JobStatus,
    NodeGoodput,
    NodeInfo,
    NodeState,
    RankInfo,
)


def status(desk: Desk) -> JobStatus:
    """The whole small truth about the job."""
    state, spec = desk.state, desk.spec
    world = desk.running()
    members = _members(desk, world)
    loss = next((item.loss for node in members[:1] for item in node.ranks[:1]), 0.0)
    return JobStatus(
        name=desk.identity.job_name,
        uid=desk.identity.job_uid,
        phase=state.phase,
        reason=state.reason,
        text=state.text,
        epoch=desk.identity.epoch,
        round=state.round,
        world_size=world.size if world else 0,
        active_nodes=len(world.places) if world else 0,
        ready_nodes=len(desk.roster.candidates),
        standby_nodes=len(desk.spares) if world else 0,
        replicas=spec.replicas,
        min_replicas=spec.min_replicas,
        max_replicas=spec.max_replicas,
        step=_step(desk, members),
        step_seconds=world.step_seconds if world else 0.0,
        loss=loss,
        has_loss=loss != 0.0,
        samples_per_second=sum([node.samples_per_second for node in members]),
        restarts_in_place=state.restarts_in_place,
        nodes_replaced=state.nodes_replaced,
        nodes_disrupted=state.nodes_disrupted,
        rescales=state.rescales,
        budgets=_budgets(desk),
        goodput=ratio(desk.ledger.whole(desk.clock.micros)),
        started_unix=state.started_unix,
        finished_unix=state.finished_unix,
        excluded_nodes=tuple(state.excluded),
        generation=spec.generation,
        job_seconds=desk.clock.job_seconds,
        degraded_progress=world is not None and world.training and not world.sdk_ranks,
        stored_step=_stored_step(desk),
        memory_step=rescue.memory_step(desk),
        checkpoint_intervals=schedules.intervals(desk),
    )


def _stored_step(desk: Desk) -> int:
    fact = desk.state.checkpoint
    return fact.version.step if fact is not None and fact.version is not None else 0


def _members(desk: Desk, world: World | None) -> list[Node]:
    """Present members in rank order."""
    if world is None:
        return []
    nodes = desk.roster.nodes
    return [nodes[rank] for rank in world.places if rank in nodes]


def _step(desk: Desk, members: list[Node]) -> int:
    """Newest step that all ranks are known to have completed; the best before, without a world."""
    steps = [node.step for node in members if node.ranks]
    if not steps or len(steps) < len(members):
        return desk.state.best_step
    return max(min(steps), desk.world.first_step if desk.world else 0)


def _budgets(desk: Desk) -> tuple[BudgetState, ...]:
    balances = [charges.balance(desk, kind) for kind in budgets.CHARGEABLE]
    return tuple(
        BudgetState(kind=item.kind, used=item.used, limit=item.limit, window_seconds=item.window)
        for item in balances
        if item.limit is not None
    )


def nodes(desk: Desk) -> tuple[NodeInfo, ...]:
    """Every present or expected node, in node rank order."""
    spec = desk.spec
    expected = set(range(desk.wanted)) if spec.generation else set()
    ended = desk.state.phase in {JobPhase.SUCCEEDED, JobPhase.FAILED, JobPhase.SUSPENDED}
    ranks = sorted(set(desk.roster.nodes) | (set() if ended else expected))
    return tuple(_node(desk, rank) for rank in ranks)


def _node(desk: Desk, rank: int) -> NodeInfo:
    node = desk.roster.nodes.get(rank)
    if node is None:
        gone = rank in desk.state.departed
        return NodeInfo(node_rank=rank, state=NodeState.LOST if gone else NodeState.MISSING)
    world = desk.running()
    place = world.places.get(rank) if world and world.holds(rank, node.agent_id) else None
    hello = node.hello
    known = desk.state.nodes.get(rank)
    return NodeInfo(
        node_rank=rank,
        pod_uid=node.pod_uid,
        agent_id=node.agent_id,
        host=hello.host if hello else (known.host if known else ""),
        address=hello.address if hello else (known.address if known else ""),
        agent_pid=hello.agent_pid if hello else 0,
        state=_state(desk, node, world),
        group_rank=place.group_rank if place else 0,
        base_rank=place.base_rank if place else 0,
        local_world_size=node.local_world_size,
        silent_seconds=max(0.0, desk.now - node.last_heard),
        ranks=_ranks(node, place.base_rank) if place else (),
        version=hello.version if hello else "",
        cold_reason=node.cold_reason,
    )


def _state(desk: Desk, node: Node, world: World | None) -> NodeState:
    if node.session is None:
        return NodeState.DISCONNECTED
    if node.rank in desk.state.draining or node.rank in desk.state.released:
        return NodeState.DRAINING
    if world is not None and world.holds(node.rank, node.agent_id):
        return NodeState.FINISHED if node.rank in world.finished else NodeState.ACTIVE
    if not node.warm:
        return NodeState.WARMING
    return NodeState.READY if world is None else NodeState.STANDBY


def _ranks(node: Node, base: int) -> tuple[RankInfo, ...]:
    return tuple(
        RankInfo(
            rank=base + item.local_rank,
            local_rank=item.local_rank,
            pid=item.pid,
            step=item.step,
            step_seconds=item.step_seconds,
            since_step_seconds=item.since_step_seconds,
            loss=item.loss,
            section=item.section.name,
            has_sdk=item.has_sdk,
        )
        for item in node.ranks
    )


def events_after(desk: Desk, sequence: int, limit: int) -> tuple[JobEvent, ...]:
    """Events after this sequence, oldest first, at most `limit`."""
    events = desk.state.events
    if not events:
        return ()
    skip = max(0, sequence + 1 - events[0].sequence)
    last = min(len(events), skip + max(0, limit))
    # A deque is slow in its middle: go from the nearer end.
    newest = [events[-back] for back in range(1, len(events) - skip + 1)] if skip else list(events)
    if skip:
        newest.reverse()
    return tuple(newest[: last - skip])


def goodput(desk: Desk) -> GetGoodputResponse:
    """Node-seconds by class, whole and by node, and every incident with its cost."""
    totals = desk.ledger.totals(desk.clock.micros)
    whole = summed(totals.values())
    per_node = tuple(
        NodeGoodput(node_rank=rank, classes=entries(classes)) for rank, classes in totals.items()
    )
    open_now = {
        case.id: case.fact(
            opened=True, charged=None, cost=desk.ledger.cost(case.id, desk.clock.micros)
        )
        for case in desk.open_cases()
    }
    listed = tuple(open_now.get(key, fact) for key, fact in desk.state.incidents.items())
    return GetGoodputResponse(
        totals=entries(whole),
        node_seconds=sum(entry.node_seconds for entry in entries(whole)),
        nodes=per_node,
        incidents=listed,
        goodput=ratio(whole),
    )
