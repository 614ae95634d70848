"""Choices of this job's replicas how to agree, told to the agent of this rank.

Belongs here: the file that an agent names, to which a rank appends a line for each choice. Does not
belong here: the choice (`switch`), and what becomes of it: an event of the job.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

from holdfast_wire.keys import ENV_SYNC_CHOICES
from holdfast_wire.messages.job import SyncChosen
from holdfast_wire.proto_json import to_json

log: Final = logging.getLogger("holdfast")
Tell = Callable[[SyncChosen], None]


def teller(environment: Mapping[str, str] = os.environ) -> Tell:
    """Return what tells the agent; without one it does nothing.

    A file that cannot be written is logged: a choice is carried out whoever knows of it.
    """
    named = environment.get(ENV_SYNC_CHOICES, "")
    if not named:
        return lambda _: None
    path = Path(named)

    def tell(chosen: SyncChosen) -> None:
        try:
            with path.open("a", encoding="utf-8") as file:
                file.write(f"{to_json(chosen)}\n")
        except OSError as error:
            log.warning("local SGD: the agent is not told of a choice: %s", error)

    return tell
