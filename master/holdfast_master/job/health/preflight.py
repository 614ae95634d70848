"""Checks of nodes that are about to join a world, where `spec.health.preflight` says so.

One check is open at a time. Nodes of the running world take no part. Everything has a deadline, so
a first world waits for `timeoutSeconds` at the most. A check dies with its master: the successor
begins another one with the nodes that the journal has no verdict on.
"""

from __future__ import annotations

from typing import Final

from holdfast_master.job.health import admission, references
from holdfast_master.job.incidents import strikes
from holdfast_master.job.nodes import eligibility
from holdfast_master.job.state.context import JobContext
from holdfast_master.job.state.health import OFF, CheckedNode, OpenCheck, Preflight, preflight_mode
from holdfast_master.job.state.membership import Node
from holdfast_master.job.state.outgoing_batch import EPOCH_BITS
from holdfast_master.job.state.timers import Timer
from holdfast_master.job.state.wording import nodes_named
from holdfast_master.policies.node_history import why_again
from holdfast_master.policies.preflight import rounds
from holdfast_master.policies.preflight.figures import (
    CheckStanding,
    Figure,
    FigureReport,
    MeasuringRound,
    Participant,
    RoundId,
)
from holdfast_master.policies.quantities import verb
from holdfast_wire.messages import (
    CheckFigure,
    CheckListening,
    CheckNode,
    CheckRole,
    CheckRound,
    GoodputClass,
    NodeChecked,
    PreflightPolicy,
)
from holdfast_wire.reasons import EventReason
from holdfast_wire.resources import Resource

GATHER_SECONDS: Final = 10.0
"""For nodes that come one after another, s: beside each other they need no reference."""
ROUND_SECONDS: Final = 180.0
"""For an agent in one round, s: torch from a cold disk takes two minutes."""
ANSWER_SECONDS: Final = 5.0
"""After an agent's own deadline, s: its child is killed, and the answer is on its way."""
_KNOWN: Final = frozenset(one.value for one in Resource)


def consider(job: JobContext) -> None:
    """Begin a check if nodes wait for one, or go on with the open one."""
    own = job.preflight
    if preflight_mode(job.state.spec) in OFF:
        if own.open is not None or own.gather_until is not None:
            _forget(job)
        own.suspects.clear()
        return
    look_for_suspects(job)
    if own.open is not None:
        _look(job, own.open)
        return
    waiting = _waiting(job)
    if not waiting:
        own.gather_until = None
    elif _gathered(job, waiting):
        _begin(job, waiting)


def holds(job: JobContext) -> str:
    """Return why a first world is not formed yet; empty: no check stands before it."""
    own = job.preflight.open
    if own is None or job.worlds.recovering or job.bounds.fit(len(job.membership.candidates)):
        return ""
    return _checked(own)


def repeat(job: JobContext, node: Node) -> None:
    """Send a node that is back the order that it may not have got; it answers once more."""
    own = job.preflight.open
    name = own.name_of(node.rank, node.agent_id) if own is not None else ""
    if own is not None and name and _is_awaited(job, own, name):
        _order(job, own, name)


def _forget(job: JobContext) -> None:
    own = job.preflight
    if own.open is not None:
        for node in own.open.nodes.values():
            _turn(job, node, GoodputClass.WAITING)
    own.open = own.gather_until = None
    job.timers.cancel(Timer.PREFLIGHT_GATHER, Timer.PREFLIGHT_ROUND)


# -------------------------------------------------------------------------------------- beginning


def _waiting(job: JobContext) -> list[Node]:
    """The nodes that must be checked before they join, in the order of their ranks."""
    state = job.state
    leaving = state.draining | state.released | job.membership.surplus
    return [
        node
        for rank, node in sorted(job.membership.nodes.items())
        if node.session is not None
        and node.warm
        and rank not in leaving
        and not eligibility.is_admitted(job, node)
        and not eligibility.is_kept_out(job.state, node)
    ]


def _gathered(job: JobContext, waiting: list[Node]) -> bool:
    """Whether no other node is expected to be checked with these, or the time is over."""
    own = job.preflight
    kept_out = sum(
        eligibility.is_kept_out(job.state, node) for node in job.membership.nodes.values()
    )
    if len(waiting) + len(job.membership.candidates) + kept_out >= job.wanted:
        return True
    if own.gather_until is None:
        own.gather_until = job.now + GATHER_SECONDS
    if job.now >= own.gather_until:
        return True
    job.timers.set(Timer.PREFLIGHT_GATHER, own.gather_until)
    return False


def _begin(job: JobContext, waiting: list[Node]) -> None:
    own, settings = job.preflight, job.health_policy.preflight or PreflightPolicy()
    own.started += 1
    own.gather_until = None
    job.timers.cancel(Timer.PREFLIGHT_GATHER)
    nodes = {**_named(job, waiting), **_named(job, _trusted(job))}
    new = {node.rank for node in waiting}
    check = rounds.begin(
        # Reports to an earlier master belong to none of these numbers.
        (job.identity.epoch << EPOCH_BITS) + own.started,
        [
            Participant(
                node=name,
                standing=_standing(own, node) if node.rank in new else CheckStanding.TRUSTED,
                machine=_machine(job, node.rank),
            )
            for name, node in nodes.items()
        ],
        references.known(job.state),
        network=settings.network_check,
    )
    own.open = OpenCheck(check=check, until=job.now + settings.timeout_seconds, nodes=nodes)
    for name in _tested_names(own.open):
        _turn(job, nodes[name], GoodputClass.PREFLIGHT)
    job.out.event(EventReason.PREFLIGHT_BEGUN, _checked(own.open) + _again(own, own.open))
    _send(job, own.open)


def _standing(own: Preflight, node: CheckedNode) -> CheckStanding:
    return CheckStanding.SUSPECT if node in own.suspects else CheckStanding.NEW


def _again(own: Preflight, check: OpenCheck) -> str:
    """The words about nodes that are checked for the second time."""
    tested = [check.nodes[name] for name in _tested_names(check)]
    again = [node for node in tested if node in own.suspects]
    words = [f"node {node.rank} again: {own.suspects[node]}" for node in again]
    return "; " + "; ".join(words) if words else ""


def _trusted(job: JobContext) -> list[Node]:
    """Return idle nodes that were found healthy, on hosts without a history: partners."""
    world, nodes = job.worlds.newest, job.membership.nodes
    suspect = {host for host, standing in strikes.standings(job).items() if standing.suspect}
    return [
        nodes[rank]
        for rank in sorted(job.membership.candidates)
        if (world is None or not world.holds(rank, nodes[rank].agent_id))
        and admission.is_healthy(job.state, nodes[rank])
        and strikes.host_of(job, rank) not in suspect
    ]


def _named(job: JobContext, nodes: list[Node]) -> dict[str, CheckedNode]:
    """The nodes by names that stand for the same place in later checks, too."""
    return {
        f"{node.rank} on {_machine(job, node.rank)}": CheckedNode(node.rank, node.agent_id)
        for node in nodes
    }


def _machine(job: JobContext, rank: int) -> str:
    hello = job.membership.nodes[rank].hello
    return job.operator.host_of(rank) or (hello.host if hello is not None else "")


def _tested_names(own: OpenCheck) -> list[str]:
    return [one.node for one in own.check.participants if one.standing is not CheckStanding.TRUSTED]


def _checked(own: OpenCheck) -> str:
    ranks = [own.nodes[name].rank for name in _tested_names(own)]
    check = verb(len(ranks), "is checked before it joins", "are checked before they join")
    return f"{nodes_named(ranks)} {check}"


def _turn(job: JobContext, node: CheckedNode, kind: GoodputClass) -> None:
    if job.membership.agent(node.rank, node.agent_id) is not None:
        job.turn(node.rank, kind)


# ----------------------------------------------------------------------------------------- rounds


def _send(job: JobContext, own: OpenCheck) -> None:
    """Order the open round; without a round, or time for one, the check is over."""
    own.reports.clear()
    own.places.clear()
    left = own.until - job.now
    slack = min(ANSWER_SECONDS, left / 4)
    own.seconds = min(ROUND_SECONDS, left - slack)
    if own.check.current is None or own.seconds < 1.0:
        _forget(job)
        if job.state.stop is None:
            admission.settle(job, own)
        return
    job.timers.set(Timer.PREFLIGHT_ROUND, job.now + own.seconds + slack)
    for name in sorted(own.check.current.partners):
        _order(job, own, name)
    _look(job, own)


def _order(job: JobContext, own: OpenCheck, name: str) -> None:
    """Tell one node of the round what to measure; one that joins must know where to."""
    current, node = own.check.current, own.nodes[name]
    if current is None or not _is_here(job, own, name):
        return
    partner = current.partners[name]
    serves = name in current.servers
    place = own.places.get(partner)
    if partner and not serves and place is None:
        return
    role = CheckRole.ALONE if not partner else CheckRole.SERVE if serves else CheckRole.JOIN
    order = CheckNode(
        round=CheckRound(check=current.id.check, number=current.id.number),
        role=role,
        partner=own.nodes[partner].rank if partner else 0,
        host=place.host if role is CheckRole.JOIN and place is not None else "",
        port=place.port if role is CheckRole.JOIN and place is not None else 0,
        deadline_seconds=own.seconds,
    )
    job.out.send(job.membership.nodes[node.rank], order)


def _is_awaited(job: JobContext, own: OpenCheck, name: str) -> bool:
    """Whether a node may report yet: it has a part, has not reported, and is not gone.

    A node that joins has no order until its partner listens. It may get none: its partner has
    refused, or is gone.
    """
    current = own.check.current
    if current is None or name not in current.partners or not _may_report(job, own, name):
        return False
    partner = current.partners[name]
    asked = not partner or name in current.servers or partner in own.places
    return asked or _may_report(job, own, partner)


def _may_report(job: JobContext, own: OpenCheck, name: str) -> bool:
    return name not in own.reports and _is_here(job, own, name)


def _is_here(job: JobContext, own: OpenCheck, name: str) -> bool:
    node = own.nodes[name]
    return job.membership.agent(node.rank, node.agent_id) is not None


def _never_asked(own: OpenCheck) -> list[str]:
    """The nodes that join and have no order, as their partner has not listened so far."""
    pairs = own.check.current.pairs if own.check.current is not None else ()
    return [pair.joins for pair in pairs if pair.serves not in own.places]


def listening(job: JobContext, node: Node, _: int, message: CheckListening) -> None:
    """Tell the partner where to connect to."""
    part = _part(job, node, message.round)
    if part is None:
        return
    own, current, name = part
    if name in current.servers and name not in own.places:
        own.places[name] = message
        _order(job, own, current.partners[name])


def _part(
    job: JobContext, node: Node, given: CheckRound | None
) -> tuple[OpenCheck, MeasuringRound, str] | None:
    """The open check, its round and a node's name in it; None: the node speaks of no such round."""
    own = job.preflight.open
    current = own.check.current if own is not None else None
    if own is None or current is None or given is None:
        return None
    name = own.name_of(node.rank, node.agent_id)
    known = name in current.partners and current.id == RoundId(given.check, given.number)
    return (own, current, name) if known else None


def measured(job: JobContext, node: Node, _: int, message: NodeChecked) -> None:
    """Take a report of the open round; the last one ends it."""
    part = _part(job, node, message.round)
    if part is None:
        return
    own, current, name = part
    own.reports[name] = FigureReport(
        round=current.id,
        node=name,
        partner=current.partners[name],
        kind=message.kind,
        figures=tuple(_figure(one) for one in message.figures if one.resource in _KNOWN),
        refused=message.refused,
    )
    _look(job, own)


def _figure(figure: CheckFigure) -> Figure:
    return Figure(
        resource=Resource(figure.resource),
        value=figure.value,
        subject=figure.subject,
        error=figure.error,
    )


def _look(job: JobContext, own: OpenCheck) -> None:
    current = own.check.current
    # Each of thousands of reports asks: mostly the first nodes tell that the round goes on.
    if current is None or not any(_is_awaited(job, own, name) for name in current.partners):
        _advance(job, own)


def round_due(job: JobContext) -> None:
    """Go on without the nodes that have said nothing: they are silent, not healthy."""
    own = job.preflight.open
    if own is not None and preflight_mode(job.state.spec) not in OFF:
        _advance(job, own)


def _advance(job: JobContext, own: OpenCheck) -> None:
    own.check = rounds.conclude(own.check, own.reports.values(), _never_asked(own))
    _send(job, own)


def look_for_suspects(job: JobContext) -> None:
    """Find the suspect nodes, once for each world that has ended, before the next one is formed.

    A running world is never touched. The others may go on without a suspect node, which joins after
    its check as a new one does.
    """
    own, worlds = job.preflight, job.worlds
    running = worlds.newest is not None and not worlds.broken
    if running or own.looked_after == job.state.round:
        return
    own.looked_after = job.state.round
    if not job.state.strikes:
        return
    # Replicas that nothing has disturbed train on while others are formed anew.
    training = worlds.assigned.undisturbed() if worlds.assigned is not None else set()
    found = {node: why for node, why in _suspects(job).items() if node.rank not in training}
    present = {CheckedNode(rank, node.agent_id) for rank, node in job.membership.nodes.items()}
    own.suspects = {node: why for node, why in own.suspects.items() if node in present} | found
    for checked in found:
        node = job.membership.nodes[checked.rank]
        # Ranks that still live, in a collective without the others, would be measured along.
        job.stop_ranks(node, f"node {node.rank} is checked before it joins a world again")
        eligibility.refresh(job, node)


def _suspects(job: JobContext) -> dict[CheckedNode, str]:
    noted, standings = strikes.own(job), strikes.standings(job)
    found = dict[CheckedNode, str]()
    for rank, node in sorted(job.membership.nodes.items()):
        host = strikes.host_of(job, rank)
        if eligibility.is_kept_out(job.state, node):
            continue
        # Its own also under another name: a new master hears late on which hosts its nodes are.
        known = [one for one in noted if one.host == host or one.node_rank == rank]
        why = why_again(rank, _judged_at(job, node), known, standings.get(host))
        if why:
            found[CheckedNode(rank, node.agent_id)] = why
    return found


def _judged_at(job: JobContext, node: Node) -> float:
    """The time of this agent's verdict; 0: it joined before checks were wanted."""
    judged = job.state.judged_agent(node.rank, node.agent_id)
    return 0.0 if judged is None else judged.unix_time
