"""`holdfast incidents` and `holdfast incident`: questions and their answers.

Belongs here: the commands. Does not belong here: text (`screen`), the zip file (`archive`).
"""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Final

import click

from holdfast_cli.arguments import output_option, place_argument
from holdfast_cli.client import JobClient
from holdfast_cli.incidents import archive, screen
from holdfast_cli.render import counted, to_json
from holdfast_cli.target import JobTarget
from holdfast_wire.messages import (
    GetIncidentRequest,
    GetIncidentResponse,
    ListIncidentsRequest,
    RankEvidence,
)

MOST_CHARACTERS: Final = 256 * 1024 * 1024
"""Of stacks that are taken from a master: more than it keeps of any incident."""


@click.command()
@place_argument
@output_option
def incidents(place: JobTarget, output: str) -> None:
    """List what interrupted or held up JOB: cause, culprit, duration, steps lost."""
    with JobClient(place) as client:
        answer = client.call(ListIncidentsRequest())
    click.echo(to_json(answer) if output == "json" else screen.table(answer))


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
        click.echo(to_json(answer) if output == "json" else screen.whole(answer))
        return
    stacks = archive.save(save, answer)
    missing = f" ({answer.evidence_missing})" if answer.evidence_missing else ""
    text = f"{save} has incident {id_} with {counted(stacks, 'stack')}{missing}"
    shown = {"file": str(save), "stacks": stacks, "evidence_missing": answer.evidence_missing}
    click.echo(to_json(shown) if output == "json" else text)


def _whole(client: JobClient, incident_id: str) -> GetIncidentResponse:
    """Return an incident with the evidence of all ranks, which may take several answers."""
    ranks: list[RankEvidence] = []
    while True:
        request = GetIncidentRequest(incident_id=incident_id, skip_ranks=len(ranks))
        answer: GetIncidentResponse = client.call(request)
        if answer.evidence is None:
            return answer
        ranks += answer.evidence.ranks
        taken = sum(len(rank.stack) for rank in ranks)
        if not (answer.more and answer.evidence.ranks) or taken > MOST_CHARACTERS:
            evidence = dataclasses.replace(answer.evidence, ranks=tuple(ranks))
            return dataclasses.replace(answer, evidence=evidence, more=False)
