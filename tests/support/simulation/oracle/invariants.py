"""Invariants, each a small check of plain values that raises with its name and its reason.

Belongs here: what is right. Does not belong here: who looks when (`checks`).

The invariants of the master's core (`core_state`) are checked beside these: ranks are
contiguous, one barrier, incidents and charges agree, classes of each node sum to its wall time.
That nothing is committed without a grant, and nothing announced that is not there, is held against
what the `storage` itself has seen.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Collection, Iterable, Mapping, Sequence

from holdfast.flash.schedule import SaveEvery
from holdfast_agent.policies import master_messages
from holdfast_master.instructions import Instruction, Send, SendToOperator, StepDown
from holdfast_master.job.state.job_state import JobState
from holdfast_operator.plan.view import KnownMaster
from holdfast_wire import messages as wire


class Broken(AssertionError):  # noqa: N818 - named as a test says it
    """An invariant does not hold."""

    def __init__(self, invariant: str, text: str) -> None:
        self.invariant = invariant
        super().__init__(f"{invariant}: {text}")


def require(holds: object, invariant: str, text: str) -> None:
    """Raise unless it holds.

    Raises:
        Broken: it does not.
    """
    if not holds:
        raise Broken(invariant, text)


def opened(agent_id: str, first: object) -> None:
    """A stream begins with a Welcome, or with a Leave to an agent whose place is taken."""
    text = f"the first message to {agent_id} is a {type(first).__name__}: it would hang up"
    require(master_messages.may_open(first), "stream_opened", text)


def world_bounds(fact: wire.WorldDecided, spec: wire.MasterSpec | None) -> None:
    """A world is within [min, max], not above replicas, and a multiple of the unit."""
    name, size = "world_bounds", len(fact.members)
    if spec is None:
        raise Broken(name, f"round {fact.round} was decided before any spec had come")
    most = min(spec.max_replicas, spec.replicas)
    text = f"round {fact.round} has {size} nodes, allowed are {spec.min_replicas} to {most}"
    require(spec.min_replicas <= size <= most, name, text)
    unit = max(1, spec.node_unit)
    require(size % unit == 0, name, f"round {fact.round}: {size} nodes are no multiple of {unit}")


def world_alive(
    fact: wire.WorldDecided, heard: Mapping[tuple[int, str], float], now: float, limit: float
) -> None:
    """Every member has a stream, was heard within the silence limit and is not known to be dead.

    heard: (node rank, agent id) of every agent with a stream whose pod is not known to be over, to
    the time of its last message on the clock of `now`.
    """
    for member in fact.members:
        at = heard.get((member.node_rank, member.agent_id))
        who = f"round {fact.round}: node {member.node_rank} ({member.agent_id})"
        if at is None:
            raise Broken("world_alive", f"{who} has no stream, or its pod is known to be over")
        silent = now - at
        require(silent <= limit + 1e-3, "world_alive", f"{who} was silent for {silent:.1f} s")


def evidence_first(
    before: Sequence[wire.WorldMember],
    fact: wire.WorldDecided,
    known: Mapping[int, str],
    connected: Collection[tuple[int, str]],
) -> None:
    """No world follows while a member of the last one is merely away: it may train on.

    known: agent id of each node rank that joined and is not known to be gone. connected: node ranks
    and agent ids that have a stream.
    """
    for member in before:
        who = (member.node_rank, member.agent_id)
        away = known.get(member.node_rank) == member.agent_id and who not in connected
        text = f"round {fact.round} was decided while node {member.node_rank} was merely away"
        require(not away, "evidence_first", text)


def ranks_stable(before: Sequence[wire.WorldMember], fact: wire.WorldDecided) -> None:
    """Ranks are unique; survivors keep their order; at the same size only vacant places change.

    The first place may go to another member because the first node serves the store.
    """
    ids = [member.node_rank for member in fact.members]
    require(len(ids) == len(set(ids)), "ranks_stable", f"round {fact.round}: ranks {ids}")
    old = [(member.node_rank, member.agent_id) for member in before]
    new = [(member.node_rank, member.agent_id) for member in fact.members]
    was, now = {who: at for at, who in enumerate(old)}, {who: at for at, who in enumerate(new)}
    kept, stayed = [who for who in old if who in now], [who for who in new if who in was]
    moved = new[0] if new and new[0] in was and kept[0] != new[0] else None
    kept = [who for who in kept if who != moved]
    stayed = [who for who in stayed if who != moved]
    text = f"round {fact.round}: survivors stood as {kept}, now as {stayed}"
    require(kept == stayed, "ranks_stable", text)
    if len(old) == len(new) and moved is None and kept and kept[0] == old[0]:
        wrong = [who for who in kept if was[who] != now[who]]
        require(not wrong or new[0] not in was, "ranks_stable", f"round {fact.round}: {wrong}")


def one_round(number: int, newest: int) -> None:
    """Each decided round is newer than all before it."""
    require(number > newest, "one_round", f"round {number} was decided after round {newest}")


def assignments_agree(round_number: int, sent: Sequence[wire.WorldAssignment]) -> None:
    """All members of a round are told the same world, and each a place of its own."""
    name = "assignments_agree"
    worlds = {(a.world_hash, a.world_size, a.group_world_size, a.store_port) for a in sent}
    require(len(worlds) == 1, name, f"round {round_number} was told as {sorted(worlds)}")
    places = sorted((a.group_rank, a.base_rank, a.local_world_size) for a in sent)
    groups = [place[0] for place in places]
    require(len(groups) == len(set(groups)), name, f"round {round_number}: places {places}")
    taken = [base + n for _, base, size in places for n in range(size)]
    require(len(taken) == len(set(taken)), name, f"round {round_number}: ranks {taken}")


class Rosters:
    """What masters told replicas of each other."""

    def __init__(self) -> None:
        self._known: dict[int, wire.OuterRoster] = {}

    def told(self, message: wire.WorldAssignment) -> None:
        """A replica is told a roster: it is in it, and all hear the same of an epoch."""
        roster = message.roster
        text = f"replica {message.replica} is told {roster}"
        if roster is None or message.replica not in roster.replicas:
            raise Broken("rosters_agree", text)
        known = self._known.setdefault(roster.epoch, roster)
        require(known == roster, "rosters_agree", f"{text}, others {known}")
        require(len(roster.since) == len(roster.replicas), "rosters_agree", text)
        require(max(roster.since) <= roster.epoch, "rosters_agree", text)
        ordered = list(roster.replicas) == sorted(set(roster.replicas))
        require(ordered and roster.store_port, "rosters_agree", text)


def roster_follows(before: wire.OuterRoster, roster: wire.OuterRoster) -> None:
    """Processes that were told a roster are told a newer one, whichever master it is of."""
    name, text = "roster_follows", f"{roster} follows {before}"
    require(roster.epoch > before.epoch or roster == before, name, text)
    for number, since in zip(roster.replicas, roster.since, strict=True):
        require(since > before.epoch or number in before.replicas, name, text)


def replicas_stable(before: wire.WorldDecided | None, fact: wire.WorldDecided) -> None:
    """Who goes on goes on as it was; a new replica has a new number and begins with the round."""
    name, known = "replicas_stable", _by_replica(before) if before is not None else {}
    for number, (members, began) in _by_replica(fact).items():
        text = f"round {fact.round}: replica {number} has {members} of round {began}"
        if began < fact.round:
            require(known.get(number) == (members, began), name, f"{text}, had {known}")
        else:
            fresh = began == fact.round and number > max(known, default=0)
            # The same decision is written again once its stores are known.
            same = before is not None and before.round == fact.round and number in known
            require(fresh or same, name, f"{text}; before there were {sorted(known)}")


def _by_replica(fact: wire.WorldDecided) -> dict[int, tuple[tuple[wire.WorldMember, ...], int]]:
    members = iter(fact.members)
    return {
        one.number: (tuple(itertools.islice(members, one.nodes)), one.round)
        for one in fact.replicas
    }


def starting(fact: wire.WorldDecided) -> wire.WorldDecided:
    """Return a decision with the members alone whose processes start: others may be away."""
    members = iter(fact.members)
    found = [
        member
        for one in fact.replicas
        for member in tuple(itertools.islice(members, one.nodes))
        if one.round == fact.round
    ]
    return dataclasses.replace(fact, members=tuple(found)) if fact.replicas else fact


def superseded_steps_down(
    own: tuple[int, str], fence: wire.Fence | None, batch: Sequence[Instruction]
) -> None:
    """A master that hears of a newer one, or of a twin, does nothing but step down."""
    if fence is None or fence.epoch < own[0]:
        return
    if fence.epoch == own[0] and fence.incarnation in {"", own[1]}:
        return
    name, text = "superseded_steps_down", f"{own} heard of {fence.epoch, fence.incarnation}"
    require(any(isinstance(item, StepDown) for item in batch), name, f"{text} and went on")
    acts = [item for item in batch if isinstance(item, Send | SendToOperator)]
    require(not acts, name, f"{text} and still said {acts}")


def old_news_without_effect(about: int, before: int, after: int, *, ending: bool) -> None:
    """A message about the processes of another round does not end the running one."""
    if before and about not in (0, before) and not ending:
        text = f"a message about round {about} ended round {before} (now {after})"
        require(after == before, "old_news_without_effect", text)


def fence_obeyed(who: str, known: wire.Fence, response: wire.SessionResponse) -> None:
    """An agent acts on nothing of an older master, of a twin, or about an older round."""
    got, what = response.fence, type(response.message).__name__
    if got is None:
        raise Broken("fence_obeyed", f"{who} obeyed a {what} without a fence")
    text = f"{who} knows epoch {known.epoch} ({known.incarnation}) and obeyed {what} of {got}"
    require(got.epoch >= known.epoch, "fence_obeyed", text)
    twin = got.epoch == known.epoch and got.incarnation != known.incarnation
    require(not twin, "fence_obeyed", text)
    if isinstance(response.message, wire.WorldAssignment | wire.StopRound | wire.SetBarrier):
        text = f"{who} is in round {known.round} and obeyed {what} of round {got.round}"
        require(got.round >= known.round, "fence_obeyed", text)


def operator_obeys_newest(known: KnownMaster, response: wire.SyncResponse) -> None:
    """The operator acts on nothing of a master older than one that it knows, or of a twin."""
    got, what = response.fence, type(response.message).__name__
    if got is None:
        raise Broken("operator_obeys_newest", f"a master said {what} without a fence")
    text = f"the operator knows {known} and obeyed {what} of {got}"
    require(got.epoch >= known.epoch, "operator_obeys_newest", text)
    twin = got.epoch == known.epoch and known.incarnation not in {"", got.incarnation}
    require(not twin, "operator_obeys_newest", text)


def charges_grow(before: Sequence[wire.BudgetCharge], after: Sequence[wire.BudgetCharge]) -> None:
    """No charge is ever forgotten, but those of no progress; no incident is charged twice."""
    lasting = wire.BudgetKind.NO_PROGRESS
    kept = [charge for charge in before if charge.kind is not lasting]
    now = [charge for charge in after if charge.kind is not lasting]
    text = f"{len(kept)} charges became {len(now)}"
    require(now[: len(kept)] == kept, "charges_grow", text)
    ids = [charge.incident_id for charge in after]
    require(len(ids) == len(set(ids)), "charges_grow", f"an incident was charged twice: {ids}")


def charges_survive(
    keeper: str, kept: Iterable[wire.BudgetCharge], charges: Collection[wire.BudgetCharge]
) -> None:
    """Require that a new master has all charges that are kept, except those for no progress."""
    lost = [c for c in kept if c.kind is not wire.BudgetKind.NO_PROGRESS and c not in charges]
    require(not lost, "charges_survive", f"a new master does not have {lost}, which {keeper} keeps")


def journal_agrees(folded: JobState, state: JobState) -> None:
    """The records alone give the state that the master has."""
    for field in dataclasses.fields(folded):
        mine, its = getattr(state, field.name), getattr(folded, field.name)
        text = f"{field.name} is {mine} in memory and {its} from the journal"
        require(mine == its, "journal_agrees", text)


def masterless_ends(who: str, alone: float, limit: float) -> None:
    """Workers without a master do not outlive the limit."""
    text = f"{who} trains for {alone:.1f} s without a master, the limit is {limit:.0f} s"
    require(alone <= limit, "masterless_ends", text)


def old_workers_die(who: str, own: int, newest: int, seconds: float, bound: float) -> None:
    """No worker of an older round lives on where its agent reaches the master."""
    text = f"{who} has workers of round {own}, the master is in round {newest}, {seconds:.1f} s"
    require(seconds <= bound, "old_workers_die", text)


def goodput_sums(rank: int, counted: int, present: int) -> None:
    """The classes of a node sum to the time for which it was present, in microseconds."""
    text = f"node {rank}: classes sum to {counted} us, it was present for {present} us"
    require(abs(counted - present) <= 50, "goodput_sums", text)


def goodput_survives(rank: int, counted: int, before: int, gap: int) -> None:
    """A new master goes on from what its predecessor had counted, up to a second for each."""
    text = f"node {rank}: {before} us were counted, its next master begins with {counted} us"
    slack = 1_000_000
    require(before - slack <= counted <= before + gap + slack, "goodput_survives", text)


def window_kept(fact: wire.WorldDecided, enough_for: float, window: float) -> None:
    """A first world that could still grow waits until there were enough nodes for the window."""
    text = f"round {fact.round} was decided after {enough_for:.2f} s of a window of {window:g} s"
    require(enough_for >= window - 1e-3, "window_kept", text)


def join_keeps_world(rank: int, before: int, after: int) -> None:
    """A node that joins breaks no world that others are in, or are still fetching."""
    text = f"node {rank} joined, and round {before} was given up"
    require(before == after, "join_keeps_world", text)


def lost_rightly(who: str, silent: float, limit: float) -> None:
    """A node to which nothing has happened is not given up before it was silent for the limit.

    silent: on the master's clock without the time in which the master itself stood still.
    """
    text = f"{who} lives, nothing happened to it, it was silent for {silent:.2f} s and is given up"
    require(silent >= limit - 1e-3, "lost_rightly", text)


def lease_kills(who: str, stood: float, limit: float, living: int) -> None:
    """Nothing of the workers lives once their agent stood still for longer than its lease."""
    text = f"{who} stood still for {stood:.1f} s and its workers of round {living} live"
    require(not living or stood <= limit, "lease_kills", text)


def success_earned(policy: wire.SuccessPolicy, size: int, done: Collection[int]) -> None:
    """The job succeeds only when its policy is met by ranks that really ended well."""
    met = {
        wire.SuccessPolicy.ANY_WORKER: bool(done),
        wire.SuccessPolicy.RANK0: 0 in done,
    }.get(policy, len(done) == size)
    text = f"{policy.name} is not met: {len(done)} of {size} ranks ended well"
    require(met, "success_earned", text)


class Schedules:
    """By which schedules of checkpoints the ranks of each world save at each step."""

    _KEPT = 4_000

    def __init__(self) -> None:
        self._shared: dict[tuple[str, int], frozenset[SaveEvery]] = {}

    def saves(self, world: str, step: int, every: Collection[SaveEvery]) -> None:
        """A node's ranks have completed a step: there is a schedule that all nodes' followed."""
        key, own = (world, step), frozenset(every)
        shared = self._shared.get(key, own) & own
        self._shared[key] = shared
        while len(self._shared) > self._KEPT:
            del self._shared[next(iter(self._shared))]
        text = f"at step {step} of {world} a node saves by {sorted(map(str, own))} alone"
        require(shared, "schedule_shared", text)
