"""Checkpoints: the parts of the job's state that concern saving and restoring.

Belongs here: those parts by name. Does not belong here: what is in them, and the facts that survive
the master (`job_state`).
"""

from __future__ import annotations

import dataclasses

from holdfast_master.job.state.barrier import SaveOrder
from holdfast_master.job.state.checkpoint_tracker import CheckpointTracker, SaveSchedule


@dataclasses.dataclass(slots=True, eq=False)
class Checkpoints:
    """The known checkpoints, their intervals, and a requested save."""

    tracker: CheckpointTracker = dataclasses.field(default_factory=CheckpointTracker)
    starts: dict[int, CheckpointTracker] = dataclasses.field(default_factory=dict)
    """Starts of replicas by number, which begin while others start, train and save."""
    """Versions in memory and on storage, as agents reported."""
    schedule: SaveSchedule = dataclasses.field(default_factory=SaveSchedule)
    """The intervals of the running world."""
    order: SaveOrder | None = None
    """A checkpoint that somebody asked for; None: nobody waits for one."""
