"""Screens of `holdfast incidents` and `holdfast incident`.

Belongs here: text for people. Does not belong here: questions (`command`), files (`archive`).
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator

from holdfast_cli.render import columns, counted, duration
from holdfast_cli.terminal_text import clean
from holdfast_wire.messages import (
    GetIncidentResponse,
    GroupTail,
    Incident,
    IncidentEvidence,
    ListIncidentsResponse,
    RankEvidence,
)


def table(answer: ListIncidentsResponse) -> str:
    """Return a line for each incident, the oldest first."""
    if not answer.incidents:
        return "no incident so far"
    header = ("ID", "TIME", "CAUSE", "WHERE", "DURATION", "STEPS LOST", "STACKS", "WHAT")
    stacks = set(answer.with_evidence)
    return columns(header, [_row(one, one.id in stacks) for one in answer.incidents])


def _row(one: Incident, stacks: bool) -> tuple[str, ...]:
    lost = str(one.steps_redone) if not one.open or one.steps_redone else "-"
    kept = "yes" if stacks else "-"
    when = moment(one.opened_unix)
    return (one.id, when, one.cause, where(one), lasted(one), lost, kept, one.text)


def moment(unix: float) -> str:
    """Return local date and time."""
    return dt.datetime.fromtimestamp(unix).astimezone().strftime("%Y-%m-%d %H:%M:%S")


def where(one: Incident) -> str:
    """Return the culprit."""
    named = (("rank", one.culprit_rank), ("node", one.culprit_node))
    return " on ".join(f"{word} {number}" for word, number in named if number) or "-"


def lasted(one: Incident) -> str:
    """Return the time until the ranks trained again; of a hang that ended otherwise, until then."""
    if one.open:
        return "open"
    seconds = one.first_step_seconds or (one.decided_seconds if one.reported_only else 0.0)
    return duration(seconds) if seconds else "-"


def whole(answer: GetIncidentResponse) -> str:
    """Return all of one incident but the stacks of ranks that are not odd."""
    one = answer.incident or Incident()
    lines = [
        f"Incident    {one.id}",
        f"When        {moment(one.opened_unix)}",
        f"Cause       {one.cause}",
        f"What        {clean(one.text)}",
        f"Where       {where(one)}",
        f"Duration    {lasted(one)}",
        f"Steps lost  {one.steps_redone}",
        f"Rounds      {one.from_round} -> {one.to_round or 'none'}",
        *(f"Evidence    {clean(text)}" for text in one.evidence),
    ]
    return "\n".join([*lines, *_ranks(answer)])


def _ranks(answer: GetIncidentResponse) -> Iterator[str]:
    found = answer.evidence
    if found is None:
        yield f"Stacks      none: {clean(answer.evidence_missing)}"
        return
    if found.silent_ranks:
        yield f"Silent      ranks {', '.join(map(str, found.silent_ranks))}"
    yield ""
    yield _rank_table(found)
    for rank in found.ranks:
        if rank.rank in found.odd_ranks and rank.stack:
            yield f"\nrank {rank.rank}\n{clean(rank.stack, lines=True).rstrip()}"
    others = sum(bool(rank.stack) and rank.rank not in found.odd_ranks for rank in found.ranks)
    if others:
        yield f"\nStacks of {counted(others, 'other rank')}: --save FILE.zip"


def _rank_table(found: IncidentEvidence) -> str:
    rows = [_rank_row(rank, rank.rank in found.odd_ranks) for rank in found.ranks]
    return columns(("RANK", "ODD", "PID", "STATE", "KERNEL", "CPU", "NEWEST COLLECTIVE"), rows)


def _rank_row(one: RankEvidence, odd: bool) -> tuple[str, ...]:
    newest = max(one.groups, key=lambda tail: -tail.age_seconds, default=None)
    return (
        str(one.rank),
        "odd" if odd else "",
        str(one.pid),
        one.process_state or "gone",
        one.kernel_function or "-",
        f"{one.cpu_seconds:.2f} s in {one.observed_seconds:.1f} s",
        _collective(newest),
    )


def _collective(tail: GroupTail | None) -> str:
    if tail is None:
        return "-"
    age = duration(tail.age_seconds)
    return f"{tail.operation} {tail.sizes} number {tail.sequence} of {tail.group}, {age} ago"
