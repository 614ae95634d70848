"""Stacks of the local ranks, as nobody wakes the code that they run.

Belongs here: the worker server first, the memory of the process next; the cut of frames that are
not the script's. Does not belong here: a verdict (the master's `policies/hang`).

A signal is never sent: sleep, poll and sem_timedwait would return, and what takes EINTR for an
error would fail.
"""

from __future__ import annotations

import asyncio
import re
import select
import socket
from collections.abc import Collection
from pathlib import Path
from typing import Final

from holdfast_agent.health import memory_stacks
from holdfast_agent.health.memory_stacks import UnreadableError
from holdfast_agent.health.worker_server import NoAnswerError, WorkerServer, WorkerServerError

SERVER_SECONDS: Final = 1.0
"""For the answer of a worker server, which waits for the GIL."""
MEMORY_SECONDS: Final = 2.0
"""For a reading of the memory, which takes 0.1 s on an idle machine."""
_RUNS_THE_SCRIPT: Final = re.compile(r'  File ".*/holdfast_agent/zygote/script\.py", line ')
"""A line of faulthandler, most recent call first: the lines below it are not the script's."""


class StackQuestions:
    """Asks worker servers for stacks; a rank whose GIL is held has one open question at most.

    Each open question keeps one of the server's 32 threads until the GIL is free.
    """

    def __init__(self) -> None:
        self._open: dict[Path, socket.socket] = {}

    def keep(self, paths: Collection[Path]) -> None:
        """Forget the questions to all other servers: their processes have ended."""
        for path in [path for path in self._open if path not in paths]:
            self._open.pop(path).close()

    def traceback(self, path: Path, seconds: float) -> str:
        """Return Python's stacks of all threads, in faulthandler's format; blocks.

        Raises:
            NoAnswerError: None came within `seconds`: perhaps a thread never frees the GIL.
            WorkerServerError: No usable answer came.
        """
        known = self._open.pop(path, None)
        if known is not None:
            if not select.select([known], [], [], seconds)[0]:
                self._open[path] = known
                raise NoAnswerError(f"{path}: an earlier question for stacks is not answered yet")
            known.close()  # as old as the question
        return WorkerServer(path).traceback(seconds, keep=lambda one: self._note(path, one))

    def _note(self, path: Path, connection: socket.socket) -> None:
        self._open[path] = connection


async def of_process(questions: StackQuestions, pid: int, path: Path) -> str:
    """Return the stacks of a rank, or why there are none."""
    if not pid:
        return "no stack: its process has ended"
    try:
        text = await asyncio.to_thread(questions.traceback, path, SERVER_SECONDS)
    except WorkerServerError as error:
        held = isinstance(error, NoAnswerError)
        problem = "its worker server did not answer" if held else "its worker server has no stacks"
        try:
            text = await memory_stacks.read(pid, MEMORY_SECONDS)
        except UnreadableError as reason:
            return f"no stack: {problem}, and {reason}"
    return scripts_own(text)


def scripts_own(text: str) -> str:
    """Return faulthandler's dump without this package's frames below the script's first one.

    They are the same for every rank, and three times as many as the script's.
    """
    kept: list[str] = []
    cut = False
    for line in text.splitlines():
        is_frame = line.startswith("  ")
        first = not kept or not kept[-1].startswith("  ")
        cut = is_frame and (cut or (not first and bool(_RUNS_THE_SCRIPT.match(line))))
        if not cut:
            kept.append(line)
    return "\n".join(kept)
