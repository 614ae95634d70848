"""The screen of `holdfast health`."""

from __future__ import annotations

import pytest

from holdfast_cli.render import health_screen as screen
from holdfast_wire.messages import GetHealthResponse, HangStatus, RankHealth, SlowVerdict


def _rank(rank: int, lag: float, *, known: bool = True) -> RankHealth:
    return RankHealth(
        rank=rank,
        node_rank=rank // 2,
        local_rank=rank % 2,
        step=90,
        step_guessed=True,
        local_seconds=0.25 + lag if known else 0.0,
        lag_seconds=lag,
    )


def test_each_rank_has_its_lag_and_a_bar() -> None:
    """As a share of a step; half a step fills the bar. A guessed step is marked."""
    text = screen(
        GetHealthResponse(
            round=3,
            ranks=(_rank(0, 0.0), _rank(1, -0.01), _rank(2, 0.05)),
            slow=(
                SlowVerdict(
                    subject="rank",
                    node="1",
                    ranks=(2,),
                    text="rank 2 on 1 needs 0.05 s more",
                    lost_node_seconds_per_hour=1200.0,
                    considered=("data loader: not measured",),
                ),
            ),
            step_seconds=0.25,
            windows=7,
        )
    )
    lines = text.splitlines()
    assert lines[0] == "1 slow (round 3, 0.25 s a step, 7 windows judged)"
    assert lines[1] == "SLOW  rank 2 on 1 needs 0.05 s more"
    assert "1200 node-seconds an hour" in lines[2]
    assert lines[3] == "  data loader: not measured"
    assert lines[5].split() == ["0", "0", "~90", "0.25", "s", "+0.0%"]
    assert lines[6].split()[-1] == "-4.0%"
    assert lines[7].split()[-2:] == ["+20.0%", "########"]


def test_it_says_why_nobody_is_judged() -> None:
    """Instead of a table of nothing; ranks are listed as far as they are known."""
    text = screen(
        GetHealthResponse(not_judged="no window is whole yet", ranks=(_rank(0, 0.0, known=False),))
    )
    assert text.splitlines()[0] == "Nobody is judged: no window is whole yet"
    assert text.splitlines()[2].split() == ["0", "0", "~90", "-", "-"]
    assert (
        screen(GetHealthResponse(not_judged="no world runs")) == "Nobody is judged: no world runs"
    )


@pytest.mark.parametrize(
    ("hang", "says"),
    [
        (
            HangStatus(cause="lock", ranks=(2,), nodes=(1,), seconds=41.2, text="\x1b[2Ja.py:81"),
            ["HANG  lock: rank 2 on node 1 (for 41 s)", "  a.py:81"],
        ),
        (
            HangStatus(seconds=1.0, text="no progress for 9.0 s"),
            ["HANG  the ranks are asked what they do: no progress for 9.0 s (for 1 s)"],
        ),
        (HangStatus(cause="network", seconds=3.0, text="all wait"), ["HANG  network (for 3 s)"]),
    ],
    ids=["with ranks and nodes", "before the evidence has come", "nobody is to blame"],
)
def test_a_hang_is_named_with_what_is_known(hang: HangStatus, says: list[str]) -> None:
    """Escape sequences from a script's names do not reach the terminal."""
    lines = screen(GetHealthResponse(hang=hang)).splitlines()
    assert lines[1 : 1 + len(says)] == says
