"""Summary of a failed job for people: torch's own report of this node's failed workers."""

from __future__ import annotations

import os
import sys

from holdfast_agent.shutdown import End
from holdfast_agent.workers.exit_reports import SeenExit
from holdfast_agent.workers.runner import RoundRunner


def show(runner: RoundRunner, end: End, name: str) -> None:
    """Write the reason of a failed job to stderr, and the culprit's error to the parent's file."""
    failures = {seen.message.rank: seen for seen in runner.exits.failures}
    if failures:
        sys.stderr.write(f"{_report(name, failures)}\n")
    sys.stderr.write(f"holdfast-run: the job failed: {end.reason}\n")


def _report(name: str, failures: dict[int, SeenExit]) -> str:
    from torch.distributed.elastic.multiprocessing.errors import (
        ChildFailedError,
        ProcessFailure,
        get_error_handler,
    )

    error = ChildFailedError(
        name,
        {
            rank: ProcessFailure(
                local_rank=seen.message.local_rank,
                pid=seen.message.pid,
                exitcode=seen.message.exit_code,
                error_file=seen.error_file,
            )
            for rank, seen in failures.items()
        },
    )
    _, first = error.get_first_failure()
    if os.environ.get("TORCHELASTIC_ERROR_FILE") and os.path.isfile(first.error_file):  # noqa: PTH113
        # A launcher above this one gets the root cause, as from torchrun's @record.
        get_error_handler().dump_error_file(first.error_file, first.exitcode)
    return str(error)
