"""Strikes against the hosts of the job's nodes: written down, and what counts of them.

Belongs here: the fact of a strike, the report to the operator, the history for people. Does not
belong here: weights and decay (`holdfast_wire.strikes`), the finding that leads to a strike.
"""

from __future__ import annotations

import dataclasses

from holdfast_master.job.state.context import JobContext
from holdfast_master.job.state.wording import short
from holdfast_master.policies import node_history
from holdfast_master.policies.node_history import HostStanding
from holdfast_wire.messages import HostHistory, NodeStruck, StrikesReported
from holdfast_wire.strikes import StrikeCause


def host_of(job: JobContext, rank: int) -> str:
    """Return the host of a node's newest agent; empty: not known."""
    known = job.state.nodes.get(rank) or job.state.departed.get(rank)
    return job.operator.host_of(rank) or (known.host if known is not None else "")


def strike(job: JobContext, rank: int, cause: StrikeCause, text: str) -> None:
    """Write down what speaks against a node's host; an unknown host has no history."""
    host = host_of(job, rank)
    if host:
        at = job.clock.moment.unix
        fact = NodeStruck(
            host=host, node_rank=rank, cause=cause.value, text=short(text), unix_time=at
        )
        job.out.strike(fact)


def report(job: JobContext) -> None:
    """Tell the operator of all strikes of this job: its stream is new."""
    if job.state.strikes:
        job.out.send_operator(StrikesReported(strikes=tuple(job.state.strikes)))


def withdraw(job: JobContext, rank: int, cause: StrikeCause, since: float) -> None:
    """Take the strikes of a cause back that a node has had since a Unix time, s."""
    for one in own(job):
        if one.node_rank == rank and one.cause == cause.value and one.unix_time >= since:
            job.out.strike(dataclasses.replace(one, withdrawn=True))


def own(job: JobContext) -> list[NodeStruck]:
    """Return the strikes of this job that were not taken back."""
    return [one for one in job.state.strikes if not one.withdrawn]


def _known(job: JobContext) -> list[NodeStruck]:
    """Return the strikes of this job, and those of other jobs on its hosts."""
    return [*own(job), *job.operator.cluster.strikes]


def standings(job: JobContext) -> dict[str, HostStanding]:
    """Return the points against each host now."""
    return node_history.judge(_known(job), job.clock.moment.unix)


def history(job: JobContext) -> tuple[HostHistory, ...]:
    """Return the hosts with strikes, the worst first."""
    avoided = {one.host: one.reason for one in job.operator.cluster.avoided} | job.state.excluded
    known = sorted(_known(job), key=lambda one: one.unix_time)
    found = sorted(standings(job).items(), key=lambda item: (-item[1].points, item[0]))
    return tuple(
        HostHistory(
            host=host,
            points=standing.points,
            suspect=standing.suspect,
            reason=standing.reason,
            strikes=tuple(one for one in known if one.host == host),
            avoided=avoided.get(host, ""),
        )
        for host, standing in found
    ) + tuple(
        HostHistory(host=host, reason=reason, avoided=reason)
        for host, reason in job.state.excluded.items()
        if host not in dict(found)
    )
