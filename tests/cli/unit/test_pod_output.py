"""`holdfast run --logs`: all that pods print is shown, once, and soon."""

from __future__ import annotations

import asyncio
import io
from pathlib import Path

import pytest
from rich.console import Console

from holdfast_cli import live_view
from holdfast_cli.runner.pod_logs import PodOutput, follow_logs


def _new(output: PodOutput, now: float, *, last: bool = False) -> list[str]:
    return [line for lines in output.new(now, last=last) for line in lines]


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """The log of a pod that has printed nothing yet."""
    file = tmp_path / "job-worker-0.log"
    file.touch()
    return file


def _print(log: Path, text: str) -> None:
    with log.open("a", newline="") as stream:
        stream.write(text)


def test_lines_are_shown_once_whatever_their_ends(log: Path) -> None:
    """A line without an end waits for it, and is whole then."""
    output = PodOutput(log)
    _print(log, "one\ntwo\r\nthr")
    assert _new(output, 0.0) == ["one", "two"]
    _print(log, "ee\n\n")
    assert _new(output, 0.25) == ["three", ""]
    assert _new(output, 9.0) == []


def test_a_progress_bar_is_seen_before_its_end(log: Path) -> None:
    """Its newest state, once a second where it changes; its end only where that is news."""
    output = PodOutput(log)
    _print(log, "10%\r20%\r")
    assert _new(output, 0.0) == []
    assert _new(output, 1.0) == ["20%"]
    assert _new(output, 5.0) == []
    _print(log, "30%\r")
    assert _new(output, 5.5) == ["30%"]
    _print(log, "40%\r")
    assert _new(output, 6.0) == []
    _print(log, "100%\n")
    assert _new(output, 6.1) == ["100%"]
    _print(log, "a question? ")
    assert _new(output, 7.0) == []
    assert _new(output, 8.0) == ["a question? "]
    _print(log, "\nnext\n")
    assert _new(output, 8.1) == ["next"]


def test_what_has_no_end_at_the_end_is_shown(log: Path) -> None:
    """Nothing follows any more: it is not waited for."""
    output = PodOutput(log)
    _print(log, "killed in the mid")
    assert _new(output, 0.0) == []
    assert _new(output, 0.1, last=True) == ["killed in the mid"]


def test_a_line_without_an_end_is_read_once_and_never_kept_whole(
    log: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each look reads what is new; a line of many MiB comes in pieces."""
    read = 0
    opened = Path.open

    class Counted(io.BufferedReader):
        def read(self, size: int | None = -1) -> bytes:
            nonlocal read
            data = super().read(size)
            read += len(data)
            return data

    def counting(path: Path, mode: str = "r", **options: object) -> object:
        if mode == "rb":
            return Counted(io.FileIO(path))
        return opened(path, mode, **options)  # type: ignore[call-overload]

    monkeypatch.setattr(Path, "open", counting)
    output = PodOutput(log)
    pieces = []
    for at in range(40):
        _print(log, "x" * 100_000)
        pieces += _new(output, at / 100)
    pieces += _new(output, 1.0, last=True)
    assert read == 4_000_000
    assert "".join(pieces) == "x" * 4_000_000
    assert max(map(len, pieces)) <= 600_000


async def test_all_of_it_is_shown_at_the_end(log: Path) -> None:
    """Also what was printed while the follower was busy with what came before."""
    shown: list[str] = []
    ended = asyncio.Event()
    _print(log, "".join(f"step {number}\n" for number in range(50_000)))
    following = asyncio.create_task(
        follow_logs(log.parent, live_view.PlainView(shown.append), ended)
    )
    await asyncio.sleep(0)
    _print(log, "final accuracy 0.93")
    ended.set()
    await asyncio.wait_for(following, 60.0)
    lines = "\n".join(shown).splitlines()
    assert len(lines) == 50_001
    assert lines[-1].endswith("[job-worker-0] final accuracy 0.93")


def test_a_terminal_keeps_every_line_above_the_panel() -> None:
    """The panel has room for a few lines; what scripts print is more."""
    console = Console(file=io.StringIO(), force_terminal=True, width=60)
    with live_view.LiveView(console) as view:
        view.output([f"line {number} [bold] %s {{}}" for number in range(100)])
    written = console.file.getvalue()  # type: ignore[attr-defined]
    assert all(f"line {number} [bold] %s {{}}" in written for number in range(100))
