"""Answers about incidents: the core's list, and the evidence that is kept of some.

Belongs here: putting the two together. Does not belong here: the methods (`job_service`), files
(`evidence.store`).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, Protocol

import grpc

from holdfast_master.server.message_size import ranks_fitting
from holdfast_master.server.rpc import CallRefusedError
from holdfast_wire.errors import Refusal
from holdfast_wire.evidence_file import EvidenceFileError
from holdfast_wire.messages import (
    GetIncidentRequest,
    GetIncidentResponse,
    Incident,
    IncidentEvidence,
    ListIncidentsResponse,
)
from holdfast_wire.reasons import Cause

NOT_COLLECTED: Final = "only hangs have stacks: of a process that has ended there is none"
NOT_KEPT: Final = "it is not kept any more, or the master that had it kept no journal"
_MISSING: Final = {
    Cause.HANG: NOT_KEPT,
    Cause.HUNG: "they are those of the incident that its text names",
}
"""By the incident's cause."""


class KeptEvidence(Protocol):
    """The evidence that is kept."""

    def known(self) -> tuple[str, ...]:
        """Return the ids of the incidents that have some."""

    async def read(self, incident_id: str) -> IncidentEvidence | None:
        """Return that of one incident."""


def listed(incidents: Iterable[Incident], kept: KeptEvidence) -> ListIncidentsResponse:
    """Return the list."""
    every, known = tuple(incidents), set(kept.known())
    return ListIncidentsResponse(
        incidents=every, with_evidence=tuple(one.id for one in every if one.id in known)
    )


async def one(
    incidents: Iterable[Incident], kept: KeptEvidence, request: GetIncidentRequest
) -> GetIncidentResponse:
    """Return one incident, with as much of its evidence as fits.

    Raises:
        CallRefusedError: no incident has that id.
    """
    every = {fact.id: fact for fact in incidents}
    fact = every.get(request.incident_id)
    if fact is None:
        raise CallRefusedError(_absent(request.incident_id))
    try:
        evidence = await kept.read(fact.id)
    except EvidenceFileError as error:
        return GetIncidentResponse(incident=fact, evidence_missing=str(error))
    if evidence is None:
        why = _MISSING.get(fact.cause, NOT_COLLECTED)
        return GetIncidentResponse(incident=fact, evidence_missing=why)
    page, more = ranks_fitting(evidence, request.skip_ranks)
    return GetIncidentResponse(incident=fact, evidence=page, more=more)


def _absent(incident_id: str) -> Refusal:
    text = f"incident_id is {incident_id!r}, and no incident that is remembered has it"
    return Refusal(
        grpc.StatusCode.NOT_FOUND, "NO_INCIDENT", f"{text}; ListIncidents has those that exist"
    )
