"""Inputs and effects of one master, kept apart from it, and held against the invariants.

Belongs here: an independent account of a master's inputs and effects. Does not belong here: what
is right (`invariants`), and the job as a whole (`checks`).
"""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING, Any

from holdfast_master.core import Core
from holdfast_master.inputs import (
    Connected,
    Disconnected,
    Input,
    OperatorMessage,
    Received,
    Stalled,
)
from holdfast_master.instructions import CloseSession, Instruction, Record, Refuse, Reply, Send
from holdfast_master.job.state.context import JobContext
from holdfast_master.job.state.operator_view import is_over
from holdfast_master.job.state.phases import OVER
from holdfast_master.policies.goodput import from_entries
from holdfast_wire import messages as wire
from simulation.oracle import core_state, invariants, memory
from simulation.oracle.durability import Unsynced
from simulation.oracle.handover import Handover
from simulation.oracle.invariants import require
from simulation.oracle.presence import Presence

if TYPE_CHECKING:
    from holdfast_master.inputs import UserRequest
    from simulation.master import Master
    from simulation.oracle.checks import Checks

_ENDING = OVER | {wire.JobPhase.SUSPENDED}

NODES_PER_LOOK = 8
"""With up to this many nodes the master's own invariants are checked after every event that led to
something, with twice as many after every second, and so on."""


def _standing(context: JobContext) -> int:
    """The newest decided world that is not given up; 0: none."""
    newest = context.worlds.newest
    return newest.round if newest is not None and not context.worlds.broken else 0


class Watch:
    """Looks at one master after each of its inputs."""

    def __init__(self, checks: Checks, master: Master) -> None:
        self.checks, self.master = checks, master
        state = self.context.state
        self.sessions: dict[int, tuple[int, str, str]] = {}
        """Open streams as the master was told: node rank, agent id, pod uid."""
        self.heard: dict[int, float] = {}
        self.contact: dict[tuple[int, str], float] = {}
        """(node rank, agent id) to its last message, streams that are gone included."""
        self.over: set[str] = set()
        self.enough_since: float | None = None
        self.recovering = False
        self.newest = 0
        """Newest decided world that is not given up; 0: none."""
        self.unlooked = 0
        """Events since the master's own invariants were checked."""
        self.fetching = False
        """Its members are on their way to their first step."""
        self.places: Collection[int] = ()
        """Its node ranks."""
        self.patience = 0.0
        self.decided = state.round
        self.members = state.assigned.members if state.assigned else ()
        self.unsynced = Unsynced()
        self.charges = list(state.charges)
        self.running = 0
        self.rosters = invariants.Rosters()
        self.fact = state.assigned
        """The newest assigned world."""
        self.asked: dict[int, UserRequest] = {}
        self.presence = Presence(master)
        self.handover = Handover(checks, master)

    @property
    def context(self) -> JobContext:
        """The master's state."""
        return self.master.core.job

    @property
    def now(self) -> float:
        """The master's clock without the time in which it stood still, s."""
        return self.master.moment().mono - self.patience

    def quiet_event(self, event: Input | None) -> None:
        """An input that led to nothing: only who was heard is noted."""
        if event is not None:
            self._note(event)
        if isinstance(event, Received):
            self._fences(event, [])

    def after_event(self, event: Input | None, batch: list[Instruction]) -> None:
        """An input that led to something: every invariant is looked at."""
        if event is not None:
            self._note(event)
        context = self.context
        self._validate(len(context.membership.nodes))
        memory.grants_answered(context)
        if isinstance(event, Received | Connected):
            self._fences(event, batch)
        self._instructions(event, batch)
        if context.state.charges != self.charges:
            invariants.charges_grow(self.charges, context.state.charges)
            self.charges = list(context.state.charges)
        if isinstance(event, Connected):
            self._joins(event)
        self.handover.look(event)
        self.checks.health.acted(self.master, batch)
        self.checks.health.look(self.master)
        self._look(context)

    def _instructions(self, event: Input | None, batch: list[Instruction]) -> None:
        told: dict[tuple[int, int], list[wire.WorldAssignment]] = {}
        for item in batch:
            if isinstance(item, Record):
                self._record(event, item, batch)
            elif isinstance(item, CloseSession):
                self._forget(item.session)
            elif isinstance(item, Send):
                self._collect(item, told)
        for (number, _), sent in told.items():
            invariants.assignments_agree(number, sent)

    def _validate(self, nodes: int) -> None:
        """The master's own invariants look at every node: in a crowd not after every event."""
        self.unlooked += 1
        if self.unlooked * NODES_PER_LOOK < nodes:
            return
        self.unlooked = 0
        core_state.check(self.context)

    def _look(self, context: JobContext) -> None:
        """Record the job's state before the next input."""
        world = context.worlds.running()
        self.running = world.round if world is not None else 0
        newest = context.worlds.newest
        self.newest = _standing(context)
        self.fetching = bool(self.newest) and newest is not None and not newest.training
        self.places = newest.places.keys() if newest is not None else ()
        self.recovering = context.worlds.recovering
        if context.bounds.fit(len(context.membership.candidates)) == 0 or world is not None:
            self.enough_since = None
        elif self.enough_since is None:
            self.enough_since = self.now

    def _joins(self, event: Connected) -> None:
        rank = event.hello.node_rank
        if self.fetching and rank not in self.places and not self._is_ending():
            invariants.join_keeps_world(rank, self.newest, _standing(self.context))

    def _is_ending(self) -> bool:
        state = self.context.state
        return state.phase in _ENDING or state.stop is not None or self.context.stepped_down

    def _note(self, event: Input) -> None:
        if isinstance(event, Connected):
            hello = event.hello
            self.sessions[event.session] = (hello.node_rank, hello.agent_id, hello.pod_uid)
            self.heard[event.session] = self.now
            self.contact[hello.node_rank, hello.agent_id] = self.now
        elif isinstance(event, Received):
            if event.session in self.sessions:
                self.heard[event.session] = self.now
                self.contact[self.sessions[event.session][:2]] = self.now
            if isinstance(event.message, wire.Goodbye) and not event.message.terminated:
                self._forget(event.session)
        elif isinstance(event, Disconnected):
            self._forget(event.session)
        elif isinstance(event, Stalled):
            self.patience += event.seconds
        elif (
            isinstance(event, OperatorMessage)
            and isinstance(event.message, wire.PodObservation)
            and is_over(event.message)
        ):
            self.over.add(event.message.pod_uid)

    def _forget(self, session: int) -> None:
        self.sessions.pop(session, None)
        self.heard.pop(session, None)

    def _fences(self, event: Received | Connected, batch: list[Instruction]) -> None:
        identity = self.master.identity
        own = (identity.epoch, identity.incarnation)
        invariants.superseded_steps_down(own, event.fence, batch)
        # Neither is about a round: it counts for the node, whatever runs there.
        if not isinstance(event, Received) or isinstance(
            event.message, wire.Goodbye | wire.NoticeReceived
        ):
            return
        context, world = self.context, self.context.worlds.running()
        about = event.fence.round if event.fence is not None else 0
        assigned = context.worlds.assigned
        if isinstance(event.message, wire.StorePrepared) and assigned is not None:
            # A store's id says the round: the agent may not have heard of it yet.
            used = event.message.store_id in assigned.store_ids.values()
            about = assigned.round if used else about
        after = world.round if world is not None else 0
        if assigned is not None and assigned.replicas:
            return  # each replica has a round of its own, of which its nodes speak
        invariants.old_news_without_effect(about, self.running, after, ending=self._is_ending())

    # ---------------------------------------------------------------------------------- its records

    def _record(self, event: Input | None, item: Record, batch: list[Instruction]) -> None:
        fact: Any = item.fact
        state = self.context.state
        memory.ends_begin(self.context, fact)
        if isinstance(fact, wire.WorldDecided):
            self._world(fact)
        elif isinstance(fact, wire.GoodputMarked):
            self.presence.brought_along |= isinstance(event, Connected)
            for node in fact.nodes:
                self.presence.brings(node.node_rank, from_entries(node.classes))
        elif isinstance(fact, wire.NodeJoined):
            self.presence.joins(fact.node_rank)
        elif isinstance(fact, wire.NodeGone):
            self.presence.leaves(fact.node_rank)
            if fact.agent_id not in state.dismissed and not self._is_ending():
                self.checks.lost(self, fact.node_rank, fact.agent_id)
        elif isinstance(fact, wire.StopRequested):
            if fact.succeeded and state.assigned is not None and state.spec is not None:
                self.checks.succeeded(state.assigned, state.spec.success_policy)
        elif isinstance(fact, wire.ScheduleConfirmed):
            self.checks.schedule_confirmed(fact, state.assigned)
        else:
            self._account(fact, batch)

    def _account(self, fact: Any, batch: list[Instruction]) -> None:
        if isinstance(fact, wire.Incident):
            self.checks.accounts.told(self.master, fact, batch)
        elif isinstance(fact, wire.BudgetCharge):
            self.checks.accounts.charged(self.master, fact, batch)

    def _world(self, fact: wire.WorldDecided) -> None:
        self.checks.promises.decided(fact)
        if fact.store_port:
            self.checks.accounts.assigned(fact)
            self.decided = max(self.decided, fact.round)  # newer only where it is adopted
            self.members = fact.members
            self.newest = fact.round  # an adopted one may break before the input is done
            self.fact = fact
            return
        invariants.one_round(fact.round, self.decided)
        self.decided = fact.round
        spec, bounds = self.context.state.spec, self.context.bounds
        invariants.world_bounds(fact, spec)
        pods = self.context.operator.pods.values()
        gone = any(is_over(pod) for pod in pods)  # perhaps nobody makes it anew
        stranded = {pod.node_rank for pod in pods if pod.unreachable}
        there = self.context.membership.candidates | stranded  # in a unit too few, perhaps
        gone |= bool(stranded) and len(there) >= bounds.largest
        first = not (self.recovering or self.newest or gone)
        if spec is not None and first and len(fact.members) < bounds.largest:
            since = self.now if self.enough_since is None else self.enough_since
            invariants.window_kept(fact, self.now - since, spec.join_window_seconds)
        heard = {
            (rank, agent_id): self.heard[session]
            for session, (rank, agent_id, pod_uid) in self.sessions.items()
            if pod_uid not in self.over
        }
        settings = self.master.settings
        limit = settings.lease_seconds + 2 * settings.heartbeat_seconds
        invariants.world_alive(invariants.starting(fact), heard, self.now, limit)
        self._members(fact)

    def _members(self, fact: wire.WorldDecided) -> None:
        """Look at who is in a world, beside the world before."""
        if fact.replicas:
            invariants.replicas_stable(self.fact, fact)
            return
        invariants.ranks_stable(self.members, fact)
        known = {rank: node.agent_id for rank, node in self.context.state.nodes.items()}
        connected = {(rank, agent_id) for rank, agent_id, _ in self.sessions.values()}
        invariants.evidence_first(self.members, fact, known, connected)

    def _collect(self, item: Send, told: dict[tuple[int, int], list[wire.WorldAssignment]]) -> None:
        message, fence = item.response.message, item.response.fence
        if not isinstance(message, wire.WorldAssignment) or fence is None:
            return
        if message.mode is wire.AssignmentMode.RECONFIGURE:
            self.rosters.told(message)
        else:
            told.setdefault((fence.round, message.replica), []).append(message)

    # ---------------------------------------------------------------------------------- its effects

    def written(self, records: list[Record], *, synced: bool) -> None:
        """Records are on the disk; of a full one people are told, and the job goes on."""
        facts = [record.fact for record in records]
        charges = [fact for fact in facts if isinstance(fact, wire.BudgetCharge)]
        if charges and synced and self.master is self.checks.job.master:
            self.checks.accounts.written(charges)
        self.unsynced.written(records, safe=synced or self.checks.job.disk.full)

    def said(self, message: object) -> None:
        """A message or a decision goes out."""
        if self.master.segment is not None:
            self.unsynced.said(message)

    def answered(self, item: Reply | Refuse) -> None:
        """A user is answered."""
        known = self.asked.pop(item.request_id, None)
        if isinstance(item, Reply):
            self.said(item.response)
        text = f"request {item.request_id} was answered twice, or never asked"
        require(known is not None, "answered_once", text)
        if known is not None and isinstance(item, Reply) and self.master is self.checks.job.master:
            self.checks.promises.answered(known, item.response)

    # -------------------------------------------------------------------------------------- its end

    def ended(self) -> None:
        """The master's life is over, or the run: what it wrote must give what it knew."""
        self._validate(0)
        master = self.master
        records = [*master.base, *(item.journal() for item in master.written)]
        folded = Core(master.identity, master.settings, records).job.state
        invariants.journal_agrees(folded, self.context.state)
        self.presence.check()
