"""The walks of a save and of a restore through the product, and a look at the modules that run.

`docs/design/0026-folders-and-names.md` has the same two lists for readers. A module counts where a
function of it runs on the way, and a reader cannot follow the way without it. The tests name others
that run there and that a reader need not open: hashes, encoders, files, values, what is asked in
vain.
"""

from __future__ import annotations

import inspect
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType
from typing import Any


@dataclass(frozen=True)
class Walk:
    """Modules of one walk, by the process in which they run."""

    rank: frozenset[str]
    """Below `holdfast.flash`; so are those of the server."""
    server: frozenset[str]
    agent: frozenset[str]
    """Below `holdfast_agent`."""
    master: frozenset[str]
    """Below `holdfast_master`."""

    @property
    def modules(self) -> frozenset[str]:
        """All of them; a module that runs in two processes is one."""
        return self.rank | self.server | self.agent | self.master


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split())


SAVE = Walk(
    rank=_names(
        "checkpointer trainer.save_policy schedule trainer.save trainer.client trainer.copier "
        "trainer.values memory.arena memory.slots server.protocol"
    ),
    server=_names(
        "server.protocol server.service server.arena_store server.worker_thread server.tiers "
        "server.coordinated_commit storage.writer storage.commit storage.manifest "
        "storage.dcp_metadata storage.owners storage.retention storage.retention_rule "
        "memory.arena memory.slots"
    ),
    agent=_names("checkpoint.arenas"),
    master=_names(
        "job.requests.agent_messages job.checkpoints.commits job.state.checkpoints "
        "job.reconcile policies.checkpoints"
    ),
)
"""From `Checkpointer.step` to the committed directory, and back to the rank."""
RESTORE = Walk(
    rank=_names(
        "checkpointer trainer.client trainer.save trainer.restore trainer.reshard "
        "trainer.state_dict trainer.torch_shards trainer.holders trainer.collectives "
        "trainer.values memory.arena storage.manifest server.protocol"
    ),
    server=_names(
        "server.protocol server.service server.worker_thread server.arena_store server.tiers "
        "server.coordinated_restore storage.reader storage.manifest storage.owners memory.arena"
    ),
    agent=_names("checkpoint.arenas"),
    master=_names(
        "job.requests.agent_messages job.checkpoints.restore job.state.checkpoints "
        "job.reconcile policies.checkpoints"
    ),
)
"""`Checkpointer.load`, from memory and from storage."""


@contextmanager
def entered(prefix: str) -> Iterator[set[str]]:
    """Collect the modules below a package whose functions run: here, and in threads begun here."""
    found: set[str] = set()

    def note(frame: FrameType, event: str, _: Any) -> None:
        code = frame.f_code
        name = str(frame.f_globals.get("__name__", ""))
        # Neither the body of a module or a class, nor what a dataclass makes of its fields.
        is_function = bool(code.co_flags & inspect.CO_OPTIMIZED) and code.co_filename[0] != "<"
        if event == "call" and is_function and name.startswith(f"{prefix}."):
            found.add(name.removeprefix(f"{prefix}."))

    before, before_threads = sys.getprofile(), threading.getprofile()
    threading.setprofile(note)
    sys.setprofile(note)
    try:
        yield found
    finally:
        sys.setprofile(before)
        threading.setprofile(before_threads)
