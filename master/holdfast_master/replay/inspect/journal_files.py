"""Finds the journal of a directory, and its job."""

from __future__ import annotations

from pathlib import Path

from holdfast_master.journal.segments import JournalError, listing, read_head
from holdfast_wire.messages import SegmentOpened


def job_uid_of(directory: Path) -> str:
    """Return the uid of the job whose journal lies in `directory`.

    Raises:
        JournalError: no file there has an intact head, or one is of a newer release.
    """
    names = listing(directory)
    for name in reversed(names):
        head = read_head(name.path)
        if head is not None and isinstance(head.fact, SegmentOpened):
            return head.fact.job_uid
    if not names:
        raise JournalError(f"{directory} holds no journal; name a job, or its journal's directory")
    raise JournalError(f"{directory}: no file of the journal has an intact head; nothing is left")
