"""What watchers are sent, encoded once for all of them.

Belongs here: the shapes that the ring and its watchers share. Does not belong here: who gets what
(see `service_watch`).
"""

from __future__ import annotations

import dataclasses

from holdfast_wire.messages import JobStatus


@dataclasses.dataclass(frozen=True, slots=True)
class News:
    """One message for every watcher, encoded once."""

    sequence: int
    """Newest event once this has been read."""
    is_event: bool
    body: bytes


@dataclasses.dataclass(frozen=True, slots=True)
class Snapshot:
    """What watchers begin with, encoded once for all that come at the same time."""

    made: float
    cursor: int
    sequence: int
    status: JobStatus
    body: bytes
