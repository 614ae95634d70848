"""Planted bugs: the real code with one function wrong, for as long as a test asks.

Each says what is wrong and where it was seen; `bench` and product never import this. A simulation
that cannot find them proves nothing.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from holdfast_master import core
from holdfast_master.inputs import Stalled
from holdfast_master.job.incidents import incidents
from holdfast_master.job.nodes import pods
from holdfast_master.job.requests import job_end, operator_messages
from holdfast_master.job.requests.job_end import SuccessOutcome, Tally
from holdfast_master.job.state import outgoing_batch
from holdfast_master.job.state.operator_view import is_over
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
from simulation import scenario
from simulation.planted import acts, agent, charges, checkpoints, health, promises
from simulation.planted.agent import Patch
from simulation.scenario import Scenario


@dataclasses.dataclass(frozen=True, slots=True)
class Bug:
    """One thing that is wrong."""

    name: str
    what: str
    patches: Callable[[], list[Patch]]
    turned: Callable[[Scenario], Scenario] = lambda drawn: drawn
    """The kind of scenario in which it is found, made of a drawn one."""

    def draw(self, seed: int) -> Scenario:
        """A scenario in which it may be found."""
        return self.turned(scenario.draw(seed))


@contextlib.contextmanager
def planted(bug: Bug) -> Iterator[None]:
    """Let the code be wrong for a while."""
    saved: list[Patch] = []
    try:
        for owner, name, wrong in bug.patches():
            saved.append((owner, name, vars(owner)[name]))
            setattr(owner, name, wrong)
        yield
    finally:
        for owner, name, right in reversed(saved):
            setattr(owner, name, right)


# ------------------------------------------------------------------------------------- rendezvous


def _max_ignored() -> list[Patch]:
    def largest(self: Bounds) -> int:
        return self.floor(self.replicas)

    return [(Bounds, "largest", property(largest))]


def _unit_above_min() -> list[Patch]:
    """The world is cut to whole units after the minimum was checked."""

    def fit(self: Bounds, nodes: int) -> int:
        size = min(nodes, self.replicas, self.maximum)
        return size if size >= self.minimum else 0

    return [(Bounds, "fit", fit)]


def _min_ignored() -> list[Patch]:
    def smallest(self: Bounds) -> int:
        return max(1, self.unit)

    return [(Bounds, "smallest", property(smallest))]


def _window_not_reset() -> list[Patch]:
    """The time since which there are enough nodes outlives their going: no window afterwards."""
    right = rounds.count_window

    def count_window(context: Any) -> None:
        since = context.membership.enough_since
        right(context)
        context.membership.enough_since = context.membership.enough_since or since

    return [(rounds, "count_window", count_window)]


def _late_joiner_wipes() -> list[Patch]:
    """A newcomer breaks a world whose members are still fetching it."""
    right = takeover_hello._joined

    def joined(context: Any, session: int, hello: Any) -> None:
        right(context, session, hello)
        world = context.worlds.newest
        if world is not None and not world.training and not context.worlds.broken:
            incidents.break_world(context, "a node joined")

    return [(takeover_hello, "_joined", joined)]


def _spec_once() -> list[Patch]:
    right = operator_messages.spec_arrived

    def arrived(context: Any, spec: Any) -> None:
        if context.state.spec is None:
            right(context, spec)

    return [(operator_messages, "spec_arrived", arrived)]


def _parameters_lost() -> list[Patch]:
    """After a restart the minimum is unknown, so any node is enough until a spec comes."""
    right = from_journal.take_up

    def take_up(context: Any) -> None:
        spec = context.state.spec
        if spec is not None:
            context.state.spec = dataclasses.replace(spec, min_replicas=1, node_unit=1)
        right(context)

    return [(from_journal, "take_up", take_up)]


def _order_lost() -> list[Patch]:
    right = rendezvous.arrange

    def arrange(previous: Any, candidates: Any, size: int, *more: Any) -> Any:
        chosen = right(previous, candidates, size, *more)
        return tuple(sorted(chosen, key=lambda node: node.agent_id))

    return [(rendezvous, "arrange", arrange)]


def _dead_members() -> list[Patch]:
    """Nobody asks whether a member of the last world may be dead."""
    return [(rounds, "_unsure", lambda *_: "")]


# -------------------------------------------------------------------------------- blame and budgets


def _charged_twice() -> list[Patch]:
    right = incidents._pay

    def pay(*args: Any) -> None:
        right(*args)
        right(*args)

    return [(incidents, "_pay", pay)]


def _preemption_as_failure() -> list[Patch]:
    right = failure.charge

    def charge(blamed: Any, action: Any, **more: bool) -> Charge:
        found = right(blamed, action, **more)
        taken = found.kind is BudgetKind.PREEMPTIONS
        return Charge(BudgetKind.FAILURES, found.reason) if taken else found

    return [(failure, "charge", charge)]


def _survivor_blamed() -> list[Patch]:
    """Whoever is heard first is to blame."""
    from holdfast_master.job.state import incident

    return [(incident, "culprit", lambda evidence: evidence[0])]


def _charges_forgotten() -> list[Patch]:
    right = incidents.open_incident

    def open_incident(context: Any, *args: Any, **more: Any) -> Any:
        context.state.charges = context.state.charges[1:]
        return right(context, *args, **more)

    return [(incidents, "open_incident", open_incident)]


# ----------------------------------------------------------------------------- liveness and success


def _stale_pod_kills() -> list[Patch]:
    """An event of an old pod is taken for the newest pod's."""
    right = pods.pod_seen

    def seen(context: Any, pod: Any) -> None:
        node = context.membership.nodes.get(pod.node_rank)
        if node is not None and is_over(pod):
            pod = dataclasses.replace(pod, pod_uid=node.pod_uid)
        right(context, pod)

    return [(pods, "pod_seen", seen)]


def _stall_expires() -> list[Patch]:
    """A master that stood still looks at its deadlines before it reads what has come."""
    return [(core, "_INPUTS", {**core._INPUTS, Stalled: core._ticked})]


def _any_success() -> list[Patch]:
    def decide(policy: SuccessPolicy, tally: Tally) -> SuccessOutcome:
        del policy
        return SuccessOutcome(tally.ranks_done > 0, "one rank has finished")

    return [(job_end, "judge_success", decide)]


# ----------------------------------------------------------------------------------------- memory


def _effect_first() -> list[Patch]:
    """The assignments do not wait until their decision is on the disk."""
    right = outgoing_batch.OutgoingBatch.record

    def record(self: Any, fact: Any, *, durable: bool = False) -> None:
        right(self, fact, durable=durable and not isinstance(fact, WorldDecided))

    return [(outgoing_batch.OutgoingBatch, "record", record)]


def _only_worlds() -> list[Patch]:
    """Nothing but decided worlds waits for the disk."""
    right = outgoing_batch.OutgoingBatch.record

    def record(self: Any, fact: Any, *, durable: bool = False) -> None:
        right(self, fact, durable=durable and isinstance(fact, WorldDecided))

    return [(outgoing_batch.OutgoingBatch, "record", record)]


def _unwritten() -> list[Patch]:
    """A change of the state that the journal does not know."""
    right = rounds._decide

    def decide(context: Any, verdict: Any, members: Any, chosen: Any = ()) -> None:
        right(context, verdict, members, chosen)
        context.state.rescales += 1

    return [(rounds, "_decide", decide)]


def _kept_dead() -> list[Patch]:
    """A failed process does not count against its replica."""
    return [(World, "disturb", lambda _, rank: None)]


def _number_again() -> list[Patch]:
    """A new replica gets the number of an earlier one."""
    right = replica_policy.seat

    def seat(*given: Any, **named: Any) -> Any:
        return right(*given, **(named | {"last": 0}))

    return [(replica_policy, "seat", seat)]


def _roster_late() -> list[Patch]:
    """Others hear of a lost replica only when another one is ready."""
    right = replica_policy.roster

    def roster(standings: Any, now_in: Any, now: float, **named: Any) -> Any:
        found = right(standings, now_in, now, **named)
        shrinks = isinstance(found, replica_policy.NewRoster) and set(found.replicas) < set(now_in)
        return replica_policy.SameRoster() if shrinks else found

    return [(replica_policy, "roster", roster)]


def _epoch_again() -> list[Patch]:
    """What agents were told of rosters that the journal has lost is nothing to a new master."""
    return [(outer_roster, "note_known", lambda *_: None)]


def _digest_ignored() -> list[Patch]:
    """A master without a journal counts rounds from one, whatever agents say."""
    right = takeover_hello.connected

    def connected(context: Any, event: Any) -> None:
        right(context, event)
        context.worlds.newest_round_seen = 0

    return [(takeover_hello, "connected", connected), (digests, "_replay", lambda *_: None)]


_BUGS: tuple[tuple[str, str, Callable[[], list[Patch]]], ...] = (
    *agent.BUGS,
    ("max ignored", "six joiners, max 4: a world of 6 (DLRover 2.1)", _max_ignored),
    ("unit ignored", "min 5, unit 4, 7 joiners: no whole units (DLRover 2.1)", _unit_above_min),
    ("min ignored", "a world below the minimum is formed", _min_ignored),
    ("window not reset", "a join window that never ends (DLRover 2.1)", _window_not_reset),
    (
        "late joiner wipes",
        "a join clears a world (DLRover #1534)",
        _late_joiner_wipes,
    ),
    ("parameters once", "a later spec is ignored (DLRover 2.1)", _spec_once),
    ("parameters lost", "after a restart one node forms a world (DLRover 2.1)", _parameters_lost),
    ("order lost", "survivors change places", _order_lost),
    ("dead members", "a world is formed while a member may be dead", _dead_members),
    ("charged twice", "one incident, two charges", _charged_twice),
    ("preemption as failure", "a preemption spends the failure budget", _preemption_as_failure),
    ("survivor blamed", "the first to be heard is the culprit", _survivor_blamed),
    ("charges forgotten", "a budget forgets", _charges_forgotten),
    ("stale pod kills", "an old pod's event kills the new pod's node", _stale_pod_kills),
    ("stall expires", "a master that stood still expires everybody", _stall_expires),
    ("any success", "any one success ends the job (DLRover 2.4)", _any_success),
    ("effect first", "assignments go out before their record is durable", _effect_first),
    ("only worlds", "what else people and agents are told is not durable", _only_worlds),
    ("unwritten", "the state changes without a record", _unwritten),
    *charges.BUGS,
    *promises.BUGS,
    *checkpoints.BUGS,
    ("digest ignored", "a master without a journal forgets what agents keep", _digest_ignored),
)
_OF_REPLICAS: tuple[tuple[str, str, Callable[[], list[Patch]]], ...] = (
    ("kept dead", "a replica goes on whose process has failed", _kept_dead),
    ("number again", "a new replica has an earlier one's number", _number_again),
    ("roster late", "a lost replica stays in the roster", _roster_late),
    ("epoch again", "a master counts epochs on from its journal alone", _epoch_again),
)
BUGS: Mapping[str, Bug] = {
    name: Bug(name, what, make, turned)
    for bugs, turned in (
        (_BUGS, lambda drawn: drawn),
        (health.BUGS, scenario.ailing),
        (acts.BUGS, scenario.acting),
        (_OF_REPLICAS, lambda drawn: dataclasses.replace(drawn, replica_nodes=drawn.unit)),
    )
    for name, what, make in bugs
}
