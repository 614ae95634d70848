"""Threads that ask the sources of notices, one each, and tell the event loop of news."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
import time
from collections.abc import Callable, Iterable

from holdfast import loop_errors
from holdfast_agent.notices.sources import Source, SourceError
from holdfast_agent.policies import notices
from holdfast_agent.policies.notices import Notice
from holdfast_wire.messages import NoticeReceived

log = logging.getLogger(__name__)

JOIN_SECONDS = 0.2
"""Wait for all threads at the end. One that waits for an answer ends with the process."""


class NoticeWatch:
    """Watch over all sources. Without a source it does nothing."""

    def __init__(
        self,
        sources: Iterable[Source],
        announced: Callable[[NoticeReceived], None],
        withdrawn: Callable[[str], None],
    ) -> None:
        """Prepare; nothing is asked yet.

        announced: Called in the event loop with each new notice.
        withdrawn: Called there with the name of a source whose notice is gone.
        """
        self._sources = tuple(sources)
        self._announced = announced
        self._withdrawn = withdrawn
        self._known: dict[str, Notice | None] = {}
        self._stopping = threading.Event()
        self._threads: list[threading.Thread] = []

    def start(self) -> None:
        """Begin to ask; call it inside the event loop."""
        loop = asyncio.get_running_loop()
        for source in self._sources:
            name = f"hf-notice {source.name}"
            thread = threading.Thread(target=self._run, args=(source, loop), name=name, daemon=True)
            thread.start()
            self._threads.append(thread)

    def stop(self) -> None:
        """Stop asking; blocks for a moment."""
        self._stopping.set()
        until = time.monotonic() + JOIN_SECONDS
        for thread in self._threads:
            thread.join(max(0.0, until - time.monotonic()))

    def _run(self, source: Source, loop: asyncio.AbstractEventLoop) -> None:
        failures = 0
        while not self._stopping.is_set():
            try:
                found = source.read()
            except (SourceError, ValueError) as error:
                failures += 1
                # Outside the cloud that was named this stays so: it is said once.
                level = logging.WARNING if failures == 1 else logging.DEBUG
                log.log(level, "no notices from %s: %s; tried again", source.name, error)
            except Exception:
                failures += 1
                log.exception("%s (fault %d)", source.name, loop_errors.count(__name__))
            else:
                if failures:
                    log.info("%s answers", source.name)
                failures = 0
                with contextlib.suppress(RuntimeError):  # the loop has ended
                    loop.call_soon_threadsafe(self._receive, source.name, found)
            self._stopping.wait(notices.pause(failures) if failures else source.pause_seconds)

    def _receive(self, source: str, found: Notice | None) -> None:
        if self._stopping.is_set():
            return
        known, self._known[source] = self._known.get(source), found
        if not notices.is_news(known, found):
            return
        if found is None:
            log.info("notice of %s: the notice is gone", source)
            self._withdrawn(source)
        else:
            log.warning("notice of %s: %s", source, found.text)
            self._announced(
                NoticeReceived(
                    kind=found.kind,
                    source=source,
                    text=found.text,
                    seconds_left=found.seconds_left(time.time()),
                    stays=found.stays,
                )
            )
