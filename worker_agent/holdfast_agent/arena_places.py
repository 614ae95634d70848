"""Which place the arenas of this node lie in, so that they outlive a kill of this agent.

Belongs here: the choice, and what follows when a place cannot be used. Does not belong here: what a
place does (`holdfast.flash`).
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from holdfast_agent.errors import ArenasError

if TYPE_CHECKING:
    from holdfast.flash.inheritance import Place

log = logging.getLogger(__name__)


def place_of(folder: str, job: str, runner: int) -> Place | None:
    """Return the place; None: in memory that is gone with this agent.

    Raises:
        ArenasError: the directory cannot be used, or is another agent's.
    """
    if folder:
        return _volume(folder, job)
    return _stash(runner, job) if runner >= 0 else None


def _volume(folder: str, job: str) -> Place:
    from holdfast.flash.volume import Volume, VolumeError

    try:
        return Volume(folder, job)
    except VolumeError as error:
        raise ArenasError(str(error)) from error


def _stash(runner: int, job: str) -> Place | None:
    from holdfast.flash.stash import Stash, StashError

    try:
        return Stash(runner, job)
    except StashError as error:
        # A wrapper around this agent may have closed it: that is no reason not to train.
        log.warning("checkpoints in memory are lost with this agent: %s", error)
        return None
