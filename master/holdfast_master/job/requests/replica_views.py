"""Replicas of a job for people and programs: who is in step, who starts, who is out.

A job of replicas trains while one of them does, also while the next world is made in place of one
that is lost. Views of nodes and of the job as a whole are in `views`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from holdfast_master.job.state.context import JobContext
from holdfast_master.job.state.world import World
from holdfast_master.job.worlds import replicas
from holdfast_master.policies.quantities import counted, verb
from holdfast_wire import messages as wire
from holdfast_wire.messages import ReplicaState

_MOST_NAMED: Final = 20
"""Replicas of one state that a text names."""
_SAID: Final[dict[ReplicaState, tuple[str, str]]] = {
    ReplicaState.JOINING: ("joins", "join"),
    ReplicaState.STARTING: ("starts", "start"),
    ReplicaState.ALONE: ("trains alone", "train alone"),
    ReplicaState.FROZEN: ("stands still and is out", "stand still and are out"),
    ReplicaState.LOST: ("is lost", "are lost"),
    ReplicaState.FINISHED: ("has ended", "have ended"),
}
"""Words for one and for several, in the order in which a text has them."""


def shown_world(job: JobContext) -> World | None:
    """The world whose processes run: also the last one, while some of its replicas go on."""
    running = job.worlds.running()
    if running is not None:
        return running
    return job.worlds.assigned if replicas.going(job) else None


def active(job: JobContext, world: World) -> Sequence[int]:
    """The node ranks of a shown world whose processes run or are being started."""
    if world is job.worlds.running():
        return tuple(world.places)
    return [one.node_rank for replica in replicas.going(job) for one in replica.members]


def synchronises(job: JobContext, world: World, number: int) -> bool:
    """Whether a replica has stepped, and is one of those that agree with each other."""
    members = world.by_replica.get(number)
    named = number in job.state.named_replicas
    return named and members is not None and world.stepped.issuperset(members)


def states(job: JobContext, world: World | None) -> dict[int, ReplicaState]:
    """The state of each replica of a shown world, by number; empty: there are none."""
    if world is None or not world.replicas:
        return {}
    going = {one.number for one in replicas.going(job)}
    return {one.number: _state(job, world, one.number, going) for one in world.replicas}


def _state(job: JobContext, world: World, number: int, going: set[int]) -> ReplicaState:
    members = world.by_replica[number]
    if world.finished.issuperset(members):
        return ReplicaState.FINISHED
    if number not in going:
        return ReplicaState.LOST
    if number in job.worlds.frozen:
        return ReplicaState.FROZEN
    if synchronises(job, world, number):
        return ReplicaState.IN_STEP
    if number in job.state.named_replicas:
        return ReplicaState.JOINING
    stepped = world.stepped.issuperset(members)
    return ReplicaState.ALONE if stepped else ReplicaState.STARTING


def listed(job: JobContext) -> tuple[wire.ReplicaInfo, ...]:
    """Each replica of the world whose processes run, by number."""
    world = shown_world(job)
    found = states(job, world)
    if world is None:
        return ()
    return tuple(
        wire.ReplicaInfo(
            number=one.number,
            state=found[one.number],
            node_ranks=world.members_of(one),
            ranks=world.places[world.members_of(one)[0]].size,
            round=one.round,
            step=_step(job, world.members_of(one)),
        )
        for one in world.replicas
    )


def _step(job: JobContext, nodes: Sequence[int]) -> int:
    """Newest step that all ranks of these nodes are known to have completed; 0: none is."""
    present = job.membership.present(nodes)
    known = len(present) == len(nodes) and all(node.ranks for node in present)
    return min((node.step for node in present), default=0) if known else 0


def ranks_of(world: World | None, nodes: Iterable[int]) -> int:
    """The number of processes on nodes of a world."""
    if world is None:
        return 0
    return sum(world.places[rank].member.local_world_size for rank in nodes)


def wanted(job: JobContext) -> int:
    """The number of replicas that the job asks for; 0: it is one world."""
    nodes = job.spec.nodes_per_replica
    return job.spec.replicas // nodes if nodes else 0


def text(job: JobContext, found: dict[int, ReplicaState]) -> str:
    """Describe the replicas of a world that trains: how many are in step, and what others do."""
    count = sum(one is ReplicaState.IN_STEP for one in found.values())
    most = max(wanted(job), len(found))
    parts = [f"{count} of {counted(most, 'replica')} {verb(count, 'is', 'are')} in step"]
    for state, (one, several) in _SAID.items():
        numbers = [number for number in sorted(found) if found[number] is state]
        if numbers:
            more = f" and {len(numbers) - _MOST_NAMED} more" if len(numbers) > _MOST_NAMED else ""
            named = ", ".join(map(str, numbers[:_MOST_NAMED])) + more
            parts.append(
                f"{'replica' if len(numbers) == 1 else 'replicas'} {named} "
                f"{one if len(numbers) == 1 else several}"
            )
    return "; ".join(parts)
