"""What pods print: shown live with a prefix for each pod, and the last words of one that failed."""

from __future__ import annotations

import asyncio
from pathlib import Path

from holdfast_cli.watching import View

_POLL_S = 0.25
_TAIL_BYTES = 4096


async def follow_logs(directory: Path, view: View) -> None:
    """Show each complete new line of the pods' logs in `view`, until cancelled."""
    offsets: dict[Path, int] = {}
    while True:
        await asyncio.to_thread(_show_new, directory, offsets, view)
        await asyncio.sleep(_POLL_S)


def _show_new(directory: Path, offsets: dict[Path, int], view: View) -> None:
    for file in sorted(directory.glob("*-worker-*.log")):
        lines, offsets[file] = _new_lines(file, offsets.get(file, 0))
        for line in lines:
            view.note(f"[{file.stem}] {line}")


def _new_lines(file: Path, offset: int) -> tuple[list[str], int]:
    with file.open("rb") as stream:
        stream.seek(offset)
        data = stream.read()
    whole = data[: data.rfind(b"\n") + 1]
    return whole.decode(errors="replace").splitlines(), offset + len(whole)


def last_line(log: Path) -> str:
    """Return the last line of a log that is not blank; empty where there is none."""
    try:
        with log.open("rb") as stream:
            size = stream.seek(0, 2)
            stream.seek(max(0, size - _TAIL_BYTES))
            lines = stream.read().decode(errors="replace").splitlines()
    except OSError:
        return ""
    return next((line.strip() for line in reversed(lines) if line.strip()), "")
