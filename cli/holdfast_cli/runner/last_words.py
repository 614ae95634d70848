"""Asks the master, at the job's end, for everything that people may want to know later."""

from __future__ import annotations

import dataclasses

from holdfast_cli.client import JobClient
from holdfast_cli.ending import Ending
from holdfast_cli.home import JobHome
from holdfast_cli.watching import FINAL_PHASES
from holdfast_wire.messages import (
    GetGoodputRequest,
    GetJobRequest,
    GetJobResponse,
    JobPhase,
    JobStatus,
    ListNodesRequest,
)

_TIMEOUT_S = 3.0
"""For each answer; a second Ctrl-C does not wait long for a master that hangs."""
_INTERRUPTED = JobStatus(
    phase=JobPhase.FAILED,
    reason="Interrupted",
    text="holdfast run was interrupted before the master could end the job",
)


def ask(home: JobHome) -> Ending:
    """Return what the master says now.

    Raises:
        CliError: it does not answer, or refuses.
    """
    with JobClient(home) as client:
        return Ending(
            job=client.call(GetJobRequest(), _TIMEOUT_S),
            nodes=client.call(ListNodesRequest(), _TIMEOUT_S),
            events=client.events(timeout_s=_TIMEOUT_S),
            goodput=client.call(GetGoodputRequest(), _TIMEOUT_S),
        )


def silent(name: str, uid: str, last: JobStatus | None) -> Ending:
    """What is known of a job whose master cannot be asked any more."""
    status = dataclasses.replace(last or JobStatus(), name=name, uid=uid)
    return Ending(job=GetJobResponse(status=status))


def with_end(ending: Ending, end: JobStatus | None, last_loss: JobStatus) -> Ending:
    """Make an ending final where the master was not: `end`, or interrupted; with the last loss."""
    status = ending.status
    if status.phase not in FINAL_PHASES:
        end = end or _INTERRUPTED
        status = dataclasses.replace(status, phase=end.phase, reason=end.reason, text=end.text)
    if last_loss.has_loss and not status.has_loss:
        status = dataclasses.replace(status, loss=last_loss.loss, has_loss=True)
    return dataclasses.replace(ending, job=dataclasses.replace(ending.job, status=status))
