"""Incidents that interrupt nothing: hangs that are only reported, with their evidence."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Sequence
from typing import Final

from holdfast_master.instructions import KeepEvidence
from holdfast_master.job.state.context import JobContext
from holdfast_master.job.state.health import Hang
from holdfast_master.job.state.world import World
from holdfast_master.policies.hang_response import HangVerdict
from holdfast_wire.messages import Incident, IncidentEvidence, RankEvidence
from holdfast_wire.reasons import Cause


def current(job: JobContext) -> Incident | None:
    """The hang that is open; None: there is none."""
    return job.state.incidents.get(job.health.open_incident)


def found(job: JobContext, world: World, hang: Hang, verdict: HangVerdict, node: int | None) -> str:
    """Open the incident of a hang, keep its evidence, and return its id.

    The hang of a round that is known already goes on under its id: a new master finds it again.
    """
    known = current(job)
    if known is not None and known.from_round != world.round:
        close(job)
        known = None
    fact = known or Incident(
        id=f"i{job.identity.epoch}.{job.state.incident_count + 1}",
        cause=Cause.HANG,
        opened_unix=job.clock.moment.unix - (job.now - hang.began),
        from_round=world.round,
        open=True,
        reported_only=True,
    )
    odd = tuple(one.rank for one in verdict.ranks)
    fact = dataclasses.replace(
        fact,
        text=verdict.reason,
        culprit_node="" if node is None else str(node),
        culprit_rank="" if node is None else str(odd[0]),
        evidence=(hang.reason,),
    )
    job.health.open_incident = fact.id
    job.out.record(fact, durable=True)
    job.out.put(KeepEvidence(_evidence(job, fact, hang, verdict, odd)))
    return fact.id


def _evidence(
    job: JobContext, fact: Incident, hang: Hang, verdict: HangVerdict, odd: tuple[int, ...]
) -> IncidentEvidence:
    return IncidentEvidence(
        incident_id=fact.id,
        collected_unix=job.clock.moment.unix,
        reason=hang.reason,
        odd_ranks=odd,
        silent_ranks=verdict.silent,
        ranks=cut_evidence(hang.evidence, odd),
    )


def close(job: JobContext, *, went_on: bool = False, since: float = 0.0) -> float:
    """Close the open hang, if there is one; its duration, s.

    went_on: the ranks make progress again, for `since` seconds; else their world ended.
    """
    fact, job.health.open_incident = current(job), ""
    if fact is None:
        return 0.0
    lasted = max(0.0, job.clock.moment.unix - since - fact.opened_unix)
    ended = "first_step_seconds" if went_on else "decided_seconds"
    changes: dict[str, float] = {ended: lasted}
    job.out.record(dataclasses.replace(fact, open=False, **changes))  # type: ignore[arg-type]
    return lasted


STACK_CHARACTERS: Final = 16 * 1024 * 1024
"""Of all stacks of an incident. A rank of a real script has 2,000 to 10,000, so those of 1,600
ranks are kept whole; packed they take a tenth."""
WHOLE_RANKS: Final = 16
"""Odd ranks whose stacks are kept whole however many ranks there are: people look at these."""
_CUT: Final = "\n... (cut: the stacks of all ranks are too long)"


def cut_evidence(
    ranks: Sequence[RankEvidence], odd: Collection[int], most: int = STACK_CHARACTERS
) -> tuple[RankEvidence, ...]:
    """The evidence in the order of ranks, with stacks of at most about `most` characters.

    Each rank has an equal share; the first odd ranks are not cut.
    """
    whole = set(sorted(odd)[:WHOLE_RANKS])
    share = max(len(_CUT), most // max(1, len(ranks)))
    # The later dumps have had their use: the verdict.
    kept = (dataclasses.replace(one, later_stacks=()) for one in ranks)
    ordered = sorted(kept, key=lambda one: one.rank)
    if sum(len(one.stack) for one in ordered) <= most:
        return tuple(ordered)
    return tuple(one if one.rank in whole else _shorter(one, share) for one in ordered)


def _shorter(one: RankEvidence, share: int) -> RankEvidence:
    if len(one.stack) <= share:
        return one
    return dataclasses.replace(one, stack=one.stack[: share - len(_CUT)] + _CUT)
