"""Asks the master, at the job's end, for its final state."""

from __future__ import annotations

import dataclasses

from holdfast_cli.client import JobClient
from holdfast_cli.final_state import FinalState
from holdfast_cli.job_directory import JobHome
from holdfast_cli.live_view import FINAL_PHASES
from holdfast_wire.messages import (
    GetGoodputRequest,
    GetJobRequest,
    GetJobResponse,
    JobPhase,
    JobStatus,
    ListNodesRequest,
)

_TIMEOUT_SECONDS = 3.0
"""Deadline of each answer, s; after a second Ctrl-C there is no long wait for a hung master."""
_INTERRUPTED = JobStatus(
    phase=JobPhase.FAILED,
    reason="Interrupted",
    text="holdfast run was interrupted before the master could end the job",
)


def ask(home: JobHome) -> FinalState:
    """Return the master's present answers.

    Raises:
        CliError: The master does not answer, or refuses.
    """
    with JobClient(home) as client:
        return FinalState(
            job=client.call(GetJobRequest(), _TIMEOUT_SECONDS),
            nodes=client.call(ListNodesRequest(), _TIMEOUT_SECONDS),
            events=client.events(timeout_s=_TIMEOUT_SECONDS),
            goodput=client.call(GetGoodputRequest(), _TIMEOUT_SECONDS),
        )


def silent(name: str, uid: str, last: JobStatus | None) -> FinalState:
    """Return the final state of a job whose master cannot be asked any more."""
    status = dataclasses.replace(last or JobStatus(), name=name, uid=uid)
    return FinalState(job=GetJobResponse(status=status))


def with_end(ending: FinalState, end: JobStatus | None, last_loss: JobStatus) -> FinalState:
    """Complete a final state that the master had not made final: with `end` and the last loss."""
    status = ending.status
    if status.phase not in FINAL_PHASES:
        end = end or _INTERRUPTED
        status = dataclasses.replace(status, phase=end.phase, reason=end.reason, text=end.text)
    if last_loss.has_loss and not status.has_loss:
        status = dataclasses.replace(status, loss=last_loss.loss, has_loss=True)
    return dataclasses.replace(ending, job=dataclasses.replace(ending.job, status=status))
