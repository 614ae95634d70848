"""Chooses the backend of this node's arenas, so that they outlive a kill of the agent.

Belongs here: the choice, and the reaction to a backend that cannot be used. Does not belong here:
the backends (`holdfast.flash.memory`).
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from holdfast_agent.errors import ArenasError

if TYPE_CHECKING:
    from holdfast.flash.memory.recovery import ArenaBackend

log = logging.getLogger(__name__)


def place_of(folder: str, job: str, runner: int) -> ArenaBackend | None:
    """Return the backend; None: arenas in memory that ends with this agent.

    Raises:
        ArenasError: the directory cannot be used, or another agent has it.
    """
    if folder:
        return _volume(folder, job)
    return _stash(runner, job) if runner >= 0 else None


def _volume(folder: str, job: str) -> ArenaBackend:
    from holdfast.flash.memory.file_backend import FileBackend, FileBackendError

    try:
        return FileBackend(folder, job)
    except FileBackendError as error:
        raise ArenasError(str(error)) from error


def _stash(runner: int, job: str) -> ArenaBackend | None:
    from holdfast.flash.memory.fdstore_backend import FdStoreBackend, FdStoreError

    try:
        return FdStoreBackend(runner, job)
    except FdStoreError as error:
        # A wrapper around this agent may have closed it: the job can train without it.
        log.warning("checkpoints in memory are lost with this agent: %s", error)
        return None
