"""Answers about the incidents of a job that has ended, from the files that its masters left.

Belongs here: the same answers as a master gives. Does not belong here: the final state's file
(`final_state`).
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from holdfast_cli.errors import MasterRefusedError
from holdfast_wire import evidence_file
from holdfast_wire.messages import (
    GetIncidentRequest,
    GetIncidentResponse,
    Incident,
    IncidentEvidence,
    ListIncidentsResponse,
)


def listed(incidents: Iterable[Incident], directory: Path | None) -> ListIncidentsResponse:
    """Return the list; `directory` has the evidence, None: nobody kept it."""
    every = tuple(incidents)
    try:
        kept = evidence_file.listing(directory) if directory is not None else {}
    except OSError:
        kept = {}
    with_evidence = tuple(one.id for one in every if one.id in kept)
    return ListIncidentsResponse(incidents=every, with_evidence=with_evidence)


def one(
    incidents: Iterable[Incident], directory: Path | None, request: GetIncidentRequest
) -> GetIncidentResponse:
    """Return one incident with all of its evidence.

    Raises:
        MasterRefusedError: no incident has that id.
    """
    fact = {each.id: each for each in incidents}.get(request.incident_id)
    if fact is None:
        raise MasterRefusedError(
            f"incident {request.incident_id!r} is none of the job's; `holdfast incidents` has them"
        )
    found: IncidentEvidence | None = None
    why = "none was kept: the master wrote no file for it"
    try:
        found = evidence_file.read(directory, fact.id) if directory is not None else None
    except evidence_file.EvidenceFileError as error:
        why = str(error)
    if found is None:
        return GetIncidentResponse(incident=fact, evidence_missing=why)
    return GetIncidentResponse(incident=fact, evidence=found)
