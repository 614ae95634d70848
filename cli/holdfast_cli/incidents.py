"""`holdfast incidents` and `holdfast incident`: the list, one of them, a zip file to pass on."""

from __future__ import annotations

import dataclasses
import datetime as dt
import os
import time
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import click

from holdfast_cli.arguments import output_option, place_argument
from holdfast_cli.client import JobClient
from holdfast_cli.errors import BadInputError
from holdfast_cli.render import columns, counted, duration, stopped, to_json, to_plain
from holdfast_cli.target import JobTarget
from holdfast_cli.terminal_text import clean
from holdfast_wire import messages as wire

_OLDEST: Final = (1980, 1, 1, 0, 0, 0)
"""Earliest time that a zip file can name."""
MOST_CHARACTERS: Final = 256 * 1024 * 1024
"""Of stacks that are taken from a master: more than it keeps of any incident."""


@click.command()
@place_argument
@output_option
def incidents(place: JobTarget, output: str) -> None:
    """List what interrupted or held up JOB: cause, culprit, duration, steps lost."""
    with JobClient(place) as client:
        answer = client.call(wire.ListIncidentsRequest())
    click.echo(to_json(answer) if output == "json" else table(answer))


@click.command()
@place_argument
@click.argument("id_", metavar="ID")
@click.option(
    "--save",
    metavar="FILE.zip",
    type=click.Path(path_type=Path),
    help="Write all of it to a new file: JSON, the stacks and recorder tails of all ranks.",
)
@output_option
def incident(place: JobTarget, id_: str, save: Path | None, output: str) -> None:
    """Show one incident of JOB; of a hang, what each rank did, and the stacks of the odd ranks."""
    with JobClient(place) as client:
        answer = _whole(client, id_)
    if save is None:
        click.echo(to_json(answer) if output == "json" else whole(answer))
        return
    stacks = write_archive(save, answer)
    missing = f" ({answer.evidence_missing})" if answer.evidence_missing else ""
    text = f"{save} has incident {id_} with {counted(stacks, 'stack')}{missing}"
    shown = {"file": str(save), "stacks": stacks, "evidence_missing": answer.evidence_missing}
    click.echo(to_json(shown) if output == "json" else text)


def _whole(client: JobClient, incident_id: str) -> wire.GetIncidentResponse:
    """Return an incident with the evidence of all ranks, which may take several answers."""
    ranks: list[wire.RankEvidence] = []
    while True:
        request = wire.GetIncidentRequest(incident_id=incident_id, skip_ranks=len(ranks))
        answer: wire.GetIncidentResponse = client.call(request)
        if answer.evidence is None:
            return answer
        ranks += answer.evidence.ranks
        taken = sum(len(rank.stack) for rank in ranks)
        if not (answer.more and answer.evidence.ranks) or taken > MOST_CHARACTERS:
            evidence = dataclasses.replace(answer.evidence, ranks=tuple(ranks))
            return dataclasses.replace(answer, evidence=evidence, more=False)


def table(answer: wire.ListIncidentsResponse) -> str:
    """Return a line for each incident, the oldest first."""
    if not answer.incidents:
        return "no incident so far"
    header = ("ID", "TIME", "CAUSE", "WHERE", "DURATION", "STEPS LOST", "STACKS", "WHAT")
    stacks = set(answer.with_evidence)
    return columns(header, [_row(one, one.id in stacks) for one in answer.incidents])


def _row(one: wire.Incident, stacks: bool) -> tuple[str, ...]:
    lost = str(one.steps_redone) if not one.open or one.steps_redone else "-"
    kept = "yes" if stacks else "-"
    when = moment(one.opened_unix)
    return (one.id, when, one.cause, where(one), lasted(one), lost, kept, one.text)


def moment(unix: float) -> str:
    """Return local date and time."""
    return dt.datetime.fromtimestamp(unix).astimezone().strftime("%Y-%m-%d %H:%M:%S")


def where(one: wire.Incident) -> str:
    """Return the culprit."""
    named = (("rank", one.culprit_rank), ("node", one.culprit_node))
    text = " on ".join(f"{word} {number}" for word, number in named if number) or "-"
    # Ranks count within a replica.
    return f"{text}, replica {one.lost_replicas[0]}" if len(one.lost_replicas) == 1 else text


def lasted(one: wire.Incident) -> str:
    """Return the time until the ranks trained again; of a hang that ended otherwise, until then."""
    if one.open:
        return "open"
    seconds = one.first_step_seconds or (one.decided_seconds if one.reported_only else 0.0)
    return duration(seconds) if seconds else "-"


def whole(answer: wire.GetIncidentResponse) -> str:
    """Return all of one incident but the stacks of ranks that are not odd."""
    one = answer.incident or wire.Incident()
    lines = [
        f"Incident    {one.id}",
        f"When        {moment(one.opened_unix)}",
        f"Cause       {one.cause}",
        f"What        {clean(one.text)}",
        f"Where       {where(one)}",
        f"Duration    {lasted(one)}",
        f"Steps lost  {one.steps_redone}",
        f"Rounds      {one.from_round} -> {one.to_round or 'none'}",
        *([f"Replicas    {stopped(one)} stopped"] if one.lost_replicas else []),
        *(f"Evidence    {clean(text)}" for text in one.evidence),
    ]
    return "\n".join([*lines, *_ranks(answer)])


def _ranks(answer: wire.GetIncidentResponse) -> Iterator[str]:
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


def _rank_table(found: wire.IncidentEvidence) -> str:
    rows = [_rank_row(rank, rank.rank in found.odd_ranks) for rank in found.ranks]
    return columns(("RANK", "ODD", "PID", "STATE", "KERNEL", "CPU", "NEWEST COLLECTIVE"), rows)


def _rank_row(one: wire.RankEvidence, odd: bool) -> tuple[str, ...]:
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


def _collective(tail: wire.GroupTail | None) -> str:
    if tail is None:
        return "-"
    age = duration(tail.age_seconds)
    return f"{tail.operation} {tail.sizes} number {tail.sequence} of {tail.group}, {age} ago"


def write_archive(path: Path, answer: wire.GetIncidentResponse) -> int:
    """Write the file, 0600, and return the number of stacks in it.

    Raises:
        BadInputError: `path` exists, or cannot be written.
    """
    try:
        file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    except FileExistsError:
        raise BadInputError(
            f"--save is {path}, which exists and stays as it is; name another file, or remove it"
        ) from None
    except OSError as error:
        raise _unwritten(path, error) from error
    try:
        with os.fdopen(file, "wb") as target, zipfile.ZipFile(target, "w") as zipped:
            for name, text in _files(answer):
                about = zipfile.ZipInfo(name, _date(answer))
                about.compress_type, about.external_attr = zipfile.ZIP_DEFLATED, 0o600 << 16
                zipped.writestr(about, text)
    except OSError as error:
        path.unlink(missing_ok=True)
        raise _unwritten(path, error) from error
    return sum(bool(rank.stack) for rank in answer.evidence.ranks) if answer.evidence else 0


def _unwritten(path: Path, error: OSError) -> BadInputError:
    return BadInputError(
        f"--save is {path}, which cannot be written ({error.strerror}); name a file in a directory "
        "that exists, may be written and has room"
    )


def _date(answer: wire.GetIncidentResponse) -> tuple[int, int, int, int, int, int]:
    opened = answer.incident.opened_unix if answer.incident else 0.0
    local = time.localtime(opened)
    return max(_OLDEST, (*local[:5], local.tm_sec))


def _files(answer: wire.GetIncidentResponse) -> Iterator[tuple[str, str]]:
    """Yield names and texts; a name has nothing in it that a job has chosen."""
    plain = to_plain(answer)
    ranks = plain["evidence"]["ranks"] if plain["evidence"] else []
    for rank in ranks:
        stack, number = rank.pop("stack"), f"{rank['rank']:05}"
        if stack:
            yield f"stacks/rank-{number}.txt", f"{clean(stack, lines=True).rstrip()}\n"
        yield f"recorder/rank-{number}.json", to_json(rank["groups"])
    yield "incident.json", to_json(plain)
