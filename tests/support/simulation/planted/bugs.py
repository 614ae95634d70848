"""Planted bugs: the real code with one function wrong, for as long as a test asks.

Each says what is wrong and where it was seen; `bench` and product never import this. A simulation
that cannot find them proves nothing.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from holdfast_master import core
from holdfast_master.inputs import Stalled
from holdfast_master.job.incidents import incidents
from holdfast_master.job.nodes import pods
from holdfast_master.job.requests import job_end, operator_messages
from holdfast_master.job.state.operator_view import is_over
from holdfast_master.job.state.outgoing_batch import OutgoingBatch
from holdfast_master.job.state.world import World
from holdfast_master.job.takeover import from_journal
from holdfast_master.job.takeover import hello as takeover_hello
from holdfast_master.job.worlds import digests, rounds
from holdfast_master.job.worlds import roster as outer_roster
from holdfast_master.policies import failure, rendezvous
from holdfast_master.policies import replicas as replica_policy
from holdfast_master.policies.failure import Charge
from holdfast_master.policies.rendezvous import Bounds
from holdfast_wire.messages import BudgetKind, SuccessPolicy, WorldDecided
from simulation.planted import acts, agent, charges, checkpoints, health, promises
from simulation.planted.patches import Bug, Bugs, Patch, planted

__all__ = ["BUGS", "Bug", "planted"]

_BUGS = Bugs()
_OF_REPLICAS = Bugs(lambda drawn: dataclasses.replace(drawn, nodes_per_replica=drawn.unit))

# ------------------------------------------------------------------------------------- rendezvous


@_BUGS.wrong("max ignored", "six joiners, max 4: a world of 6 (DLRover 2.1)", Bounds, "largest")
def _no_maximum(_: Any, self: Bounds) -> int:
    return self.floor(self.replicas)


@_BUGS.wrong(
    "unit ignored", "min 5, unit 4, 7 joiners: no whole units (DLRover 2.1)", Bounds, "fit"
)
def _unit_after_minimum(_: Any, self: Bounds, nodes: int) -> int:
    size = min(nodes, self.replicas, self.maximum)
    return size if size >= self.minimum else 0


@_BUGS.wrong("min ignored", "a world below the minimum is formed", Bounds, "smallest")
def _no_minimum(_: Any, self: Bounds) -> int:
    return max(1, self.unit)


@_BUGS.wrong(
    "window not reset", "a join window that never ends (DLRover 2.1)", rounds, "count_window"
)
def _counted_on(right: Any, context: Any) -> None:
    since = context.membership.enough_since
    right(context)
    context.membership.enough_since = context.membership.enough_since or since


@_BUGS.wrong(
    "late joiner wipes", "a join clears a world (DLRover #1534)", takeover_hello, "_joined"
)
def _wiped(right: Any, context: Any, session: int, hello: Any) -> None:
    right(context, session, hello)
    world = context.worlds.newest
    if world is not None and not world.training and not context.worlds.broken:
        incidents.break_world(context, "a node joined")


@_BUGS.wrong(
    "parameters once", "a later spec is ignored (DLRover 2.1)", operator_messages, "spec_arrived"
)
def _first_spec(right: Any, context: Any, spec: Any) -> None:
    if context.state.spec is None:
        right(context, spec)


@_BUGS.wrong(
    "parameters lost",
    "after a restart one node forms a world (DLRover 2.1)",
    from_journal,
    "take_up",
)
def _no_parameters(right: Any, context: Any) -> None:
    spec = context.state.spec
    if spec is not None:
        context.state.spec = dataclasses.replace(spec, min_replicas=1, node_unit=1)
    right(context)


@_BUGS.wrong("order lost", "survivors change places", rendezvous, "arrange")
def _unordered(right: Any, previous: Any, candidates: Any, size: int, *more: Any) -> Any:
    chosen = right(previous, candidates, size, *more)
    return tuple(sorted(chosen, key=lambda node: node.agent_id))


@_BUGS.wrong("dead members", "a world is formed while a member may be dead", rounds, "_unsure")
def _sure(*_: Any) -> str:
    return ""


# -------------------------------------------------------------------------------- blame and budgets


@_BUGS.wrong("charged twice", "one incident, two charges", incidents, "_pay")
def _paid_twice(right: Any, *args: Any) -> None:
    right(*args)
    right(*args)


@_BUGS.wrong("preemption as failure", "a preemption spends the failure budget", failure, "charge")
def _failure(right: Any, blamed: Any, action: Any, **more: bool) -> Any:
    found = right(blamed, action, **more)
    taken = found.kind is BudgetKind.PREEMPTIONS
    return Charge(BudgetKind.FAILURES, found.reason) if taken else found


@_BUGS.wrong("survivor blamed", "the first to be heard is the culprit", failure, "culprit")
def _first_heard(_: Any, evidence: Any) -> Any:
    return evidence[0]


@_BUGS.wrong("charges forgotten", "a budget forgets", incidents, "open_incident")
def _forgetful(right: Any, context: Any, *args: Any, **more: Any) -> Any:
    context.state.charges = context.state.charges[1:]
    return right(context, *args, **more)


# ----------------------------------------------------------------------------- liveness and success


@_BUGS.wrong("stale pod kills", "an old pod's event kills the new pod's node", pods, "pod_seen")
def _stale_pod(right: Any, context: Any, pod: Any) -> None:
    node = context.membership.nodes.get(pod.node_rank)
    if node is not None and is_over(pod):
        pod = dataclasses.replace(pod, pod_uid=node.pod_uid)
    right(context, pod)


@_BUGS.patched("stall expires", "a master that stood still expires everybody")
def _deadlines_first() -> list[Patch]:
    return [(core, "_INPUTS", {**core._INPUTS, Stalled: core._ticked})]


@_BUGS.wrong("any success", "any one success ends the job (DLRover 2.4)", job_end, "judge_success")
def _any_success(_: Any, policy: SuccessPolicy, size: int, done: int, **__: bool) -> Any:
    return done > 0, "one rank has finished"


# ----------------------------------------------------------------------------------------- memory


@_BUGS.wrong(
    "effect first", "assignments go out before their record is durable", OutgoingBatch, "record"
)
def _worlds_last(right: Any, self: Any, fact: Any, *, durable: bool = False) -> None:
    right(self, fact, durable=durable and not isinstance(fact, WorldDecided))


@_BUGS.wrong(
    "only worlds", "what else people and agents are told is not durable", OutgoingBatch, "record"
)
def _worlds_only(right: Any, self: Any, fact: Any, *, durable: bool = False) -> None:
    right(self, fact, durable=durable and isinstance(fact, WorldDecided))


@_BUGS.wrong("unwritten", "the state changes without a record", rounds, "_decide")
def _unwritten(right: Any, context: Any, *given: Any) -> None:
    right(context, *given)
    context.state.rescales += 1


@_BUGS.patched("digest ignored", "a master without a journal forgets what agents keep")
def _digest_ignored() -> list[Patch]:
    """It counts rounds from one, whatever agents say."""
    right = takeover_hello.connected

    def connected(context: Any, event: Any) -> None:
        right(context, event)
        context.worlds.newest_round_seen = 0

    return [(takeover_hello, "connected", connected), (digests, "_replay", lambda *_: None)]


# --------------------------------------------------------------------------------------- replicas


@_OF_REPLICAS.wrong("kept dead", "a replica goes on whose process has failed", World, "disturb")
def _undisturbed(*_: Any) -> None:
    return None


@_OF_REPLICAS.wrong(
    "number again", "a new replica has an earlier one's number", replica_policy, "seat"
)
def _numbered_anew(right: Any, *given: Any, **named: Any) -> Any:
    return right(*given, **(named | {"last": 0}))


@_OF_REPLICAS.wrong("roster late", "a lost replica stays in the roster", replica_policy, "roster")
def _never_shrinks(right: Any, standings: Any, now_in: Any, now: float, **named: Any) -> Any:
    found = right(standings, now_in, now, **named)
    shrinks = isinstance(found, replica_policy.NewRoster) and set(found.replicas) < set(now_in)
    return replica_policy.SameRoster() if shrinks else found


@_OF_REPLICAS.wrong(
    "epoch again", "a master counts epochs on from its journal alone", outer_roster, "note_known"
)
def _unheard(*_: Any) -> None:
    return None


BUGS: Mapping[str, Bug] = (
    agent.BUGS
    | _BUGS
    | charges.BUGS
    | promises.BUGS
    | checkpoints.BUGS
    | health.BUGS
    | acts.BUGS
    | _OF_REPLICAS
)
