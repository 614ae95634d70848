"""Text of scripts reaches a terminal as words only."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from holdfast_cli import live_view, render
from holdfast_cli.summary import summary
from holdfast_cli.terminal_text import clean
from holdfast_wire import messages as wire

EVIL = "a\x1b[2J\x1b[31mb\x1b]0;title\x07c\x1b]8;;http://x\x1b\\d\x9b1mE\x00\x08\u202e"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("plain, é 你 🙂", "plain, é 你 🙂"),
        ("\x1b[1;31mred\x1b[0m", "red"),
        ("\x1b]0;title\x07after", "after"),
        ("x\x1bcy", "xy"),
        ("end\x1b", "end"),
        ("a\tb\nc", "a b c"),
        ("a\x07b\x7f", "a\ufffdb\ufffd"),
    ],
)
def test_only_words_stay(text: str, words: str) -> None:
    """Sequences vanish, other control characters become visible."""
    assert clean(text) == words


def test_lines_are_kept_where_they_are_wanted() -> None:
    """A stack stays a stack."""
    assert clean("a\r\n  b\x1b[K\n", lines=True) == "a\n  b\n"


def test_no_view_shows_a_control_character() -> None:
    """Tables, lines, the plain view and the summary."""
    status = wire.JobStatus(name="t", phase=wire.JobPhase.FAILED, reason="R", text=EVIL)
    event = wire.JobEvent(sequence=1, reason="WorkerRaised", text=EVIL)
    shown: list[str] = []
    view = live_view.PlainView(shown.append)
    view.status(status)
    view.event(event)
    view.note(EVIL)
    texts = [
        *shown,
        render.status_table(status),
        render.events_table([event]),
        render.nodes_table([wire.NodeInfo(host=EVIL)]),
        summary(status, wire.GetGoodputResponse(incidents=(wire.Incident(cause="c", text=EVIL),))),
    ]
    for text in texts:
        assert "abcdE" in text, text
        assert not set(text) & {"\x1b", "\x9b", "\x00", "\x08", "\x07", "\u202e"}, text


def test_the_live_view_shows_words_only() -> None:
    """Neither escape sequences nor what looks like rich's markup."""
    out = io.StringIO()
    console = Console(file=out, force_terminal=True, width=100, color_system=None)
    with live_view.LiveView(console) as view:
        view.status(wire.JobStatus(name="t", phase=wire.JobPhase.FAILED, text=f"[red]x {EVIL}"))
        view.event(wire.JobEvent(sequence=1, reason="WorkerRaised", text=EVIL))
    text = out.getvalue()
    assert "[red]x abcdE" in text
    assert "\x1b[2J" not in text
    assert "\x1b[31m" not in text
    assert "title" not in text
