"""Output of pods: shown live with a prefix per pod, and the last lines of one that failed."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Iterator
from pathlib import Path

from holdfast_cli.live_view import View

_POLL_SECONDS = 0.25
_TAIL_BYTES = 4096
_PIECE_BYTES = 256 * 1024
"""Bytes read and shown at once, and the most that is kept of an unfinished line."""
_UNFINISHED_SECONDS = 1.0
"""Time until an unfinished line is shown, and between two updates of it, s."""


async def follow_logs(directory: Path, view: View, ended: asyncio.Event) -> None:
    """Show the pods' output in `view` until `ended` is set, then the rest."""
    shown: dict[Path, PodOutput] = {}
    while not ended.is_set():
        await asyncio.to_thread(_show_new, directory, shown, view)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_POLL_SECONDS):
                await ended.wait()
    await asyncio.to_thread(_show_new, directory, shown, view, last=True)


def _show_new(
    directory: Path, shown: dict[Path, PodOutput], view: View, *, last: bool = False
) -> None:
    for file in sorted(directory.glob("*-worker-*.log")):
        for lines in shown.setdefault(file, PodOutput(file)).new(time.monotonic(), last=last):
            view.output([f"[{file.stem}] {line}" for line in lines])


class PodOutput:
    """Log of one pod as a terminal would show it, a list of lines at a time.

    A carriage return begins a line anew, as for progress bars: only its last text counts.
    """

    def __init__(self, file: Path) -> None:
        """Begin with the first byte of `file`."""
        self._file = file
        self._offset = 0
        self._rest = b""
        """Beginning of an unfinished line."""
        self._seen = ""
        """Text that was shown of that line."""
        self._looked_at = 0.0
        """Time of that, or of the line's beginning: monotonic clock, s."""

    def new(self, now: float, *, last: bool = False) -> Iterator[list[str]]:
        """Yield the new lines since the last call.

        Args:
            now: Monotonic clock, s.
            last: The pod has ended: an unfinished line stays so.
        """
        with self._file.open("rb") as stream:
            left = stream.seek(0, 2) - self._offset
            stream.seek(self._offset)
            while left > 0 and (data := stream.read(min(left, _PIECE_BYTES))):
                left -= len(data)
                self._offset += len(data)
                if lines := self._take(data, now):
                    yield lines
        unfinished = self._unfinished(now, last=last)
        if unfinished:
            yield [unfinished]

    def _take(self, data: bytes, now: float) -> list[str]:
        if not self._rest:
            self._looked_at = now
        whole, _, rest = (self._rest + data).rpartition(b"\n")
        texts = [_visible(line) for line in whole.split(b"\n")] if b"\n" in data else []
        if texts:
            # The end of a line that was shown already adds nothing.
            texts = texts[1:] if self._seen and texts[0] == self._seen else texts
            self._seen, self._looked_at = "", now
        if len(rest) > _PIECE_BYTES:
            texts, rest = [*texts, _visible(rest)], b""
        self._rest = rest
        return texts

    def _unfinished(self, now: float, *, last: bool) -> str:
        text = _visible(self._rest)
        if text == self._seen or not (last or now - self._looked_at >= _UNFINISHED_SECONDS):
            return ""
        self._seen, self._looked_at = text, now
        return text


def _visible(line: bytes) -> str:
    """Return a terminal's view of a line without its end."""
    states = line.decode(errors="replace").split("\r")
    return next((state for state in reversed(states) if state), "")


def last_line(log: Path) -> str:
    """Return the last line of a log that is not blank; empty: there is none."""
    try:
        with log.open("rb") as stream:
            size = stream.seek(0, 2)
            stream.seek(max(0, size - _TAIL_BYTES))
            lines = stream.read().decode(errors="replace").splitlines()
    except OSError:
        return ""
    return next((line.strip() for line in reversed(lines) if line.strip()), "")
