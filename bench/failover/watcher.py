"""One watcher, which follows the job over every death by its token and notes what is odd.

Belongs here: what it saw. Does not belong here: the job.
"""

from __future__ import annotations

import dataclasses
import threading
import time

from holdfast_cli.client import JobClient
from holdfast_cli.errors import CliError
from holdfast_cli.job_directory import JobHome
from holdfast_wire.messages import (
    JobEvent,
    JobSnapshot,
    JobStatus,
    WatchJobRequest,
    WatchJobResponse,
    WatchReset,
)

_RETRY_SECONDS = 0.1


@dataclasses.dataclass(slots=True)
class Watched:
    """The counts and the problems of one watcher."""

    events: int = 0
    streams: int = 0
    """Streams that said anything: one for each master, at least."""
    resumed: int = 0
    """Streams that went on after the token, without a reset."""
    resets: int = 0
    """Streams at which the master said that it cannot go on there (a journal that is gone)."""
    problems: list[str] = dataclasses.field(default_factory=list)


class Watcher:
    """Follows the job in a thread of its own until `close`."""

    def __init__(self, home: JobHome) -> None:
        """Begin to watch the job at `home`, which may not serve yet."""
        self._home = home
        self._seen = Watched()
        self._token = ""
        self._last = 0
        self._epoch = 0
        self._reset = False
        self._client: JobClient | None = None
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._follow, name="watcher", daemon=True)
        self._thread.start()

    def close(self) -> Watched:
        """Stop watching; return the counts and the problems."""
        self._closing.set()
        client = self._client
        if client is not None:
            client.close()
        self._thread.join(10.0)
        return self._seen

    def _follow(self) -> None:
        while not self._closing.is_set():
            try:
                with JobClient(self._home) as client:
                    self._client = client
                    self._one_stream(client)
            except (CliError, ValueError):  # ValueError: the channel was closed by `close`
                pass
            time.sleep(_RETRY_SECONDS)

    def _one_stream(self, client: JobClient) -> None:
        request = WatchJobRequest(resume_token=self._token)
        self._reset, first = False, True
        for message in client.watch(request):
            if self._closing.is_set():
                return
            self._take(message)
            if first:
                first = False
                self._seen.streams += 1
                self._seen.resumed += bool(request.resume_token) and not self._reset

    def _take(self, response: WatchJobResponse) -> None:
        self._token = response.resume_token or self._token
        match response.message:
            case WatchReset():
                self._reset = True
                self._seen.resets += 1
                self._last = 0
            case JobSnapshot() as snapshot:
                if snapshot.events:
                    self._last = max(self._last, snapshot.events[0].sequence - 1)
                for event in snapshot.events:
                    self._event(event)
            case JobEvent() as event:
                self._event(event)
            case JobStatus() as status:
                if status.epoch < self._epoch:
                    self._seen.problems.append(f"epoch {status.epoch} after {self._epoch}")
                self._epoch = status.epoch

    def _event(self, event: JobEvent) -> None:
        self._seen.events += 1
        # A master without a journal goes on above its predecessor's numbers once it knows them.
        ahead = self._reset and event.sequence > self._last
        if self._last and event.sequence != self._last + 1 and not ahead:
            self._seen.problems.append(f"event {event.sequence} after {self._last}")
        self._last = event.sequence
