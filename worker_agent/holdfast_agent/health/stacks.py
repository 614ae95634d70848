"""Python's stacks of the local ranks, without waking the code that they run.

The worker server is asked first: its stacks are better while the GIL is free. Otherwise py-spy
reads the process's memory. The process may be stopped, hold the GIL or be in the kernel; what it
changes meanwhile may be missing from its stacks. The kernel asks for the right to trace it: the
same user, and no Yama or seccomp profile that forbids it (`zygote.process_tree.allow_reading`).

No signal is ever sent: sleep, poll and sem_timedwait would return, and what takes EINTR for an
error would fail. Does not belong here: a verdict (the master's `policies/hang`).
"""

from __future__ import annotations

import asyncio
import functools
import json
import re
import select
import shutil
import socket
import subprocess
import sysconfig
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any, Final

from holdfast_agent.health.worker_server import NoAnswerError, WorkerServer, WorkerServerError

PROGRAM: Final = "py-spy"
HOLDS_THE_GIL: Final = "holds the GIL"
"""In the head of a thread."""
_MOST_TEXT: Final = 300
"""Characters of a name, or of an error."""


class UnreadableError(Exception):
    """No stacks could be read: the text says why, and what helps."""


async def read_memory(pid: int, seconds: float) -> str:
    """Return the stacks of all threads as faulthandler writes them, the main thread last.

    Raises UnreadableError: they could not be read within `seconds`.
    """
    program = shutil.which(PROGRAM) or shutil.which(PROGRAM, path=sysconfig.get_path("scripts"))
    if program is None:
        raise UnreadableError(f"reading it from outside needs {PROGRAM}: pip install {PROGRAM}")
    return _stacks_text(await asyncio.to_thread(_run, program, pid, max(0.0, seconds)), pid)


def _run(program: str, pid: int, seconds: float) -> bytes:
    """Return the program's output. The agent may reap it first, so its status says nothing."""
    command = (program, "dump", "--nonblocking", "--json", "--pid", str(pid))
    try:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, timeout=seconds, check=False
        )
    except subprocess.TimeoutExpired as error:
        raise UnreadableError(f"{PROGRAM} took longer than {seconds:.1f} s") from error
    except OSError as error:
        raise UnreadableError(f"{program}: {error}") from error
    if not done.stdout:
        said = " ".join(done.stderr.decode(errors="replace").split())
        raise UnreadableError(
            f"{PROGRAM} says: {said[:_MOST_TEXT]} (it needs what ptrace needs: the same user, "
            "and a seccomp profile that allows process_vm_readv)"
        )
    return done.stdout


def _stacks_text(answer: bytes, pid: int) -> str:
    """Return the stacks in faulthandler's form; the names come from a process of the user."""
    try:
        threads = sorted(json.loads(answer), key=lambda one: one["os_thread_id"] == pid)
        return "\n".join([line for thread in threads for line in _thread(thread)])
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise UnreadableError(f"{PROGRAM} gave no stacks: {error!r:.{_MOST_TEXT}}") from error


def _thread(thread: dict[str, Any]) -> Iterator[str]:
    held = f", {HOLDS_THE_GIL}" if thread["owns_gil"] else ""
    yield f"Thread {int(thread['os_thread_id'])}{held} (most recent call first):"
    for frame in thread["frames"]:
        file, name = _line(frame["filename"]), _line(frame["name"])
        yield f'  File "{file}", line {int(frame["line"])} in {name}'
    yield ""


def _line(text: object) -> str:
    """Return a name without line breaks, which would make up frames."""
    return "".join([one if one.isprintable() else "?" for one in str(text)[:_MOST_TEXT]])


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
        keep = functools.partial(self._open.__setitem__, path)
        return WorkerServer(path).traceback(seconds, keep=keep)


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
            text = await read_memory(pid, MEMORY_SECONDS)
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
