"""Follows a job: a reducer over WatchJob's messages, and views that show the result.

A terminal gets a live view; a pipe or a file gets plain lines. It reconnects with the resume token,
so that no event is lost or shown twice.
"""

from __future__ import annotations

import collections
import sys
import time
from collections.abc import Callable, Sequence
from typing import Protocol, Self

from rich.console import Console, Group
from rich.live import Live
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from holdfast_cli import render
from holdfast_cli.client import JobClient
from holdfast_cli.errors import MasterUnreachableError
from holdfast_cli.job_directory import JobHome
from holdfast_cli.target import JobTarget, place_of
from holdfast_cli.terminal_text import clean
from holdfast_wire import messages as wire

FINAL_PHASES = frozenset({wire.JobPhase.SUCCEEDED, wire.JobPhase.FAILED})
_STYLES = {wire.EventSeverity.WARNING: "yellow", wire.EventSeverity.ERROR: "red"}
_SHOWN_EVENTS = 14
_RETRY_SECONDS = 0.5


class View(Protocol):
    """Shows a job while it runs."""

    def __enter__(self) -> Self:
        """Begin."""
        return self

    def __exit__(self, *error: object) -> None:
        """End, and leave the last state on the screen."""
        return

    def status(self, status: wire.JobStatus) -> None:
        """Show the job's status."""

    def event(self, event: wire.JobEvent) -> None:
        """Show an event."""

    def note(self, text: str) -> None:
        """Show a line about the watching itself."""

    def output(self, lines: Sequence[str]) -> None:
        """Show output of training processes; all of it stays on the screen."""


class PlainView(View):
    """One line for each event, and one for the status at most every `interval_s` seconds."""

    def __init__(self, write: Callable[[str], None], interval_s: float = 2.0) -> None:
        self._write = write
        self._interval_s = interval_s
        self._last = (0.0, wire.JobPhase.UNSPECIFIED, 0, -1)

    def status(self, status: wire.JobStatus) -> None:
        """Write the status if it has changed."""
        now = time.monotonic()
        at, phase, round_, step = self._last
        changed = (status.phase, status.round) != (phase, round_)
        if not changed and (now - at < self._interval_s or status.step == step):
            return
        self._last = (now, status.phase, status.round, status.step)
        self._line(time.time(), render.status_line(status))

    def event(self, event: wire.JobEvent) -> None:
        """Write the event."""
        self._line(event.unix_time, f"  {render.event_line(event)}")

    def note(self, text: str) -> None:
        """Write the note."""
        self._line(time.time(), f"  {text}")

    def output(self, lines: Sequence[str]) -> None:
        """Write the lines."""
        at = render.clock(time.time())
        self._write("\n".join(f"{at}    {clean(line)}" for line in lines))

    def _line(self, unix: float, text: str) -> None:
        self._write(f"{render.clock(unix)}  {clean(text)}")


class JsonView(View):
    """One line of JSON for each status, event and note, for programs."""

    def __init__(self, write: Callable[[str], None]) -> None:
        self._write = write

    def status(self, status: wire.JobStatus) -> None:
        """Write {"status": …}."""
        self._line(status=status)

    def event(self, event: wire.JobEvent) -> None:
        """Write {"event": …}."""
        self._line(event=event)

    def note(self, text: str) -> None:
        """Write {"note": …}."""
        self._line(note=text)

    def output(self, lines: Sequence[str]) -> None:
        """Write {"output": …} for each line."""
        for line in lines:
            self._line(output=line)

    def _line(self, **named: object) -> None:
        self._write(render.to_json(named, indent=None))


class LiveView(View):
    """A panel that is redrawn in place: the state above, the newest events below."""

    def __init__(self, console: Console) -> None:
        self._status = wire.JobStatus()
        self._events: collections.deque[tuple[float, str, str]] = collections.deque(
            maxlen=_SHOWN_EVENTS
        )
        self._live = Live(console=console, refresh_per_second=8, get_renderable=self._draw)

    def __enter__(self) -> Self:
        self._live.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._live.stop()

    def status(self, status: wire.JobStatus) -> None:
        """Take the status for the next redraw."""
        self._status = status

    def event(self, event: wire.JobEvent) -> None:
        """Take the event for the next redraw."""
        style = _STYLES.get(event.severity, "")
        self._events.append((event.unix_time, render.event_line(event), style))

    def note(self, text: str) -> None:
        """Take the note for the next redraw."""
        self._events.append((time.time(), clean(text), "dim"))

    def output(self, lines: Sequence[str]) -> None:
        """Print the lines above the panel."""
        text = "\n".join(map(clean, lines))
        self._live.console.print(Text(text), soft_wrap=True)

    def _draw(self) -> Group:
        status = self._status
        facts = Table.grid(padding=(0, 3))
        loss = f"{status.loss:.4f}" if status.has_loss else "-"
        size = f"{status.active_nodes} of {status.replicas}"
        if status.wanted_replicas:
            size += f", {status.replicas_in_step}/{status.wanted_replicas} replicas in step"
        facts.add_row("world", "nodes", "round", "step", "loss", "samples", "goodput", style="dim")
        facts.add_row(
            str(status.world_size),
            size,
            str(status.round),
            render.step_number(status),
            loss,
            render.rate(status.samples_per_second),
            render.share(status.goodput, assumed=status.goodput_assumed),
            style="bold",
        )
        lines = Text()
        for unix, line, style in self._events:
            lines.append(f"{render.clock(unix)}  {line}\n", style=style)
        title = f"{status.name or 'job'}  {render.phase_name(status)}  {status.text}"
        # As Text: "[red]" from a script is plain text, not rich's markup.
        return Group(Panel(facts, title=Text(clean(title.strip())), title_align="left"), lines)


def write_line(line: str) -> None:
    """Write to standard output; raises BrokenPipeError if its reader is gone."""
    sys.stdout.write(f"{line}\n")  # in one piece: two threads may write
    sys.stdout.flush()


def choose_view(output: str = "text", write: Callable[[str], None] = write_line) -> View:
    """Return a live view if standard output is a terminal, else plain or JSON lines."""
    if output == "json":
        return JsonView(write)
    console = Console()
    return LiveView(console) if console.is_terminal else PlainView(write)


class Follower:
    """Follows one job across breaks of the connection."""

    def __init__(self, job: JobHome | JobTarget, view: View, give_up_s: float = 30.0) -> None:
        """Follow a job, showing it in `view`.

        `give_up_s`: time for which an unreachable master is tried again, s.
        """
        self._place = place_of(job)
        self._view = view
        self._give_up_s = give_up_s
        self._token = ""
        self._seen = 0
        self.last = wire.JobStatus()

    def run(self, stop: Callable[[], bool] = lambda: False) -> wire.JobStatus:
        """Follow until the job has ended or `stop()` returns True; return the last status.

        Raises:
            MasterUnreachableError: No answer for `give_up_s` seconds, or the master will not
            return.
        """
        silent_since = time.monotonic()
        said = ""
        while not stop() and self.last.phase not in FINAL_PHASES:
            try:
                if self._follow_once(stop):
                    silent_since, said = time.monotonic(), ""
            except MasterUnreachableError as error:
                patient = time.monotonic() - silent_since <= self._give_up_s
                if not (patient and self._place.is_running()):
                    raise
                if str(error) != said:
                    said = str(error)
                    self._view.note(f"no answer from the master ({said}); trying again")
            if self.last.phase not in FINAL_PHASES and not stop():
                time.sleep(_RETRY_SECONDS)
        return self.last

    def _follow_once(self, stop: Callable[[], bool]) -> bool:
        received = False
        with JobClient(self._place) as client:
            for message in client.watch(wire.WatchJobRequest(resume_token=self._token)):
                received = True
                self._take(message)
                if stop() or self.last.phase in FINAL_PHASES:
                    break
        return received

    def _take(self, message: wire.WatchJobResponse) -> None:
        self._token = message.resume_token or self._token
        match message.message:
            case wire.JobSnapshot() as snapshot:
                for event in snapshot.events:
                    self._show(event)
                if snapshot.status is not None:
                    self._set(snapshot.status)
            case wire.JobStatus() as status:
                self._set(status)
            case wire.JobEvent() as event:
                self._show(event)
            case wire.WatchReset() as reset:
                self._seen = 0
                self._view.note(reset.reason)
            case _:
                pass

    def _show(self, event: wire.JobEvent) -> None:
        if event.sequence > self._seen:
            self._seen = event.sequence
            self._view.event(event)

    def _set(self, status: wire.JobStatus) -> None:
        self.last = status
        self._view.status(status)
