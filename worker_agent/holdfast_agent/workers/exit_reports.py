"""Reports of workers' exits: reads the evidence on a thread, then reports to the master once."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import logging
import re
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from holdfast.page import Page
from holdfast_agent.policies import round_phases
from holdfast_agent.policies.master_messages import renumbered
from holdfast_agent.text_limits import cut
from holdfast_agent.workers.log_files import RankFiles
from holdfast_agent.workers.memory_use import MemoryWatch
from holdfast_agent.workers.rounds import Round
from holdfast_wire.keys import MAX_TEXT_BYTES
from holdfast_wire.messages import FailureRule, WorkerExited

log = logging.getLogger(__name__)

MAX_ERROR_FILE_BYTES = 1 << 20
"""A larger error file is not read: torch writes a traceback, a few KiB."""
SEARCHED_BYTES = 64 * 1024
"""End of standard error that rules look at, as the CRD says; what is reported of it is shorter."""


def needs_stderr(rules: Sequence[FailureRule]) -> bool:
    """Return True if a rule looks at standard error, which is kept in a file then."""
    return any(rule.log_pattern for rule in rules)


def with_evidence(
    exited: WorkerExited, files: RankFiles, rules: Sequence[FailureRule]
) -> WorkerExited:
    """Return the message with the files' evidence; a missing one adds none. Blocks.

    rules: Those that match by what only this node sees are named by index; patterns are RE2.
    """
    error_type, message = _read_error_file(files.error) if files.error else ("", "")
    text = _end(files.stderr) if files.stderr else ""
    return dataclasses.replace(
        exited,
        error_type=error_type,
        error_message=exited.error_message or message,
        stderr_tail=cut(text),
        matched_rules=tuple(
            at
            for at, rule in enumerate(rules)
            if rule.log_pattern and _occurs(rule.log_pattern, text)
        ),
    )


def _read_error_file(path: Path) -> tuple[str, str]:
    """Return the exception's type, and its message with the traceback, if there is one."""
    try:
        if path.stat().st_size > MAX_ERROR_FILE_BYTES:
            return "", f"{path} is larger than {MAX_ERROR_FILE_BYTES} bytes"
        message = json.loads(path.read_text(errors="replace"))["message"]
        text, callstack = _texts(message)
    except FileNotFoundError:
        return "", ""
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        return "", f"{path} is no error file of torch: {error}"
    name = text.partition(":")[0]
    known = name if name.isidentifier() else ""
    return known, _joined(text, "" if callstack in text else callstack)


def _joined(text: str, callstack: str) -> str:
    """Return the beginning of the text, which names the error, and the end of its call stack."""
    if not callstack:
        return _head(text)
    head = _head(text, MAX_TEXT_BYTES // 2)
    return f"{head}\n{cut(callstack, MAX_TEXT_BYTES - len(head.encode()) - 1)}"


def _head(text: str, limit: int = MAX_TEXT_BYTES) -> str:
    """Return the beginning that fits into `limit` bytes of UTF-8."""
    return text.encode(errors="replace")[:limit].decode(errors="ignore")


def _texts(message: Any) -> tuple[str, str]:
    """Split torch's two forms of `message`: a text, or a text with its call stack."""
    if isinstance(message, str):
        return message, ""
    return str(message["message"]), str(message.get("extraInfo", {}).get("py_callstack", ""))


def _end(path: Path) -> str:
    try:
        with path.open("rb") as file:
            size = file.seek(0, 2)
            file.seek(max(0, size - SEARCHED_BYTES))
            return file.read(SEARCHED_BYTES).decode(errors="replace")
    except OSError:
        return ""


def _occurs(pattern: str, text: str) -> bool:
    """Return True if a text has a pattern: RE2's if it is installed, else Python's."""
    engine: Any = re
    with suppress(ImportError):
        import re2 as engine  # type: ignore[import-untyped,no-redef]
    try:
        return bool(engine.compile(pattern).search(text))
    except engine.error as error:
        kind = "wrong" if engine is re else "no RE2 pattern"
        log.warning("log pattern %r is %s: %s", pattern, kind, error)
        return False


class ExitReporter:
    """Turns exits into reports."""

    def __init__(self, report: Callable[[Any, int], None]) -> None:
        """`report` sends (message, round) to the master."""
        self._report = report
        self.memory = MemoryWatch()
        self.rules: tuple[FailureRule, ...] = ()
        """Failure rules of the job; standard error is kept for them from the next round on."""
        self.failures: dict[int, tuple[WorkerExited, str]] = {}
        """Exits other than 0 of the newest round by rank, each with the path of its error file;
        empty: it has none. For the summary at the end."""
        self._failed_round = 0
        self._tasks: set[asyncio.Task[None]] = set()

    def note(
        self, current: Round, page: Page, local_rank: int, mono_ns: int, cause: str = ""
    ) -> None:
        """Note the exit of a local rank, whose code `current` has; report it if it is evidence.

        cause: reason of the exit, if the script did not cause it.
        """
        code = current.exits[local_rank]
        if not round_phases.is_evidence(code, current.orders):
            return
        rank = current.rank(page, local_rank)
        message = WorkerExited(
            local_rank=local_rank,
            rank=current.assignment.base_rank + local_rank,
            pid=current.pids.get(local_rank, 0),
            exit_code=code,
            error_message=cut(cause),
            barrier=rank.ended_at_barrier,
            step=rank.sample.step if rank.sample.round == current.number else 0,
        )
        task = asyncio.create_task(self._collect(current, message, mono_ns * 1e-9))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _collect(self, current: Round, message: WorkerExited, seen_at: float) -> None:
        files = current.logs.files[message.local_rank]
        if message.exit_code != 0:
            rules = self.rules
            message = await asyncio.to_thread(with_evidence, message, files, rules)
            message = dataclasses.replace(
                message,
                memory=await asyncio.to_thread(self.memory.use, current.number),
                # Another master's list may have come meanwhile.
                matched_rules=renumbered(message.matched_rules, rules, self.rules),
            )
            self._remember(current.number, message, str(files.error or ""))
        age = max(0.0, time.monotonic() - seen_at)
        self._report(dataclasses.replace(message, age_seconds=age), current.number)

    def _remember(self, number: int, message: WorkerExited, file: str) -> None:
        if number > self._failed_round:
            self.failures.clear()
            self._failed_round = number
        if number == self._failed_round:
            self.failures[message.rank] = message, file
        log.error(
            "rank %d (pid %d) ended with %d%s",
            message.rank,
            message.pid,
            message.exit_code,
            f": {message.error_message.splitlines()[0]}" if message.error_message else "",
        )

    async def close(self) -> None:
        """Wait for the reports under way."""
        while self._tasks:
            await asyncio.wait(self._tasks, timeout=1.0)
