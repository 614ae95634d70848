"""The screen of `holdfast health`: verdicts, then each rank with its lag as a bar.

Belongs here: text for people. Does not belong here: the question (`main`), JSON (`render`).
"""

from __future__ import annotations

from typing import Final

from holdfast_cli.render import columns, counted
from holdfast_cli.terminal_text import clean
from holdfast_wire.messages import GetHealthResponse, HangStatus, RankHealth, SlowVerdict

BAR: Final = 20
"""Characters of the longest bar."""
FULL: Final = 0.5
"""Lag, as a share of a step, that fills a bar."""


def screen(health: GetHealthResponse) -> str:
    """Return the screen."""
    hang = [_hang(health.hang)] if health.hang is not None else []
    parts = [_head(health), *hang, *(_verdict(one) for one in health.slow)]
    if health.ranks:
        rows = [_row(one, health.step_seconds) for one in health.ranks]
        parts.append(columns(("RANK", "NODE", "STEP", "LOCAL", "LAG", ""), rows))
    return "\n".join(parts)


def _head(health: GetHealthResponse) -> str:
    if health.not_judged:
        return f"Nobody is judged: {health.not_judged}"
    step = f"round {health.round}, {health.step_seconds:.3g} s a step"
    found = "nobody is slow" if not health.slow else f"{len(health.slow)} slow"
    return f"{found} ({step}, {counted(health.windows, 'window')} judged)"


def _hang(one: HangStatus) -> str:
    seen = f"for {one.seconds:.0f} s"
    if not one.cause:
        return f"HANG  the ranks are asked what they do: {clean(one.text)} ({seen})"
    where = " on ".join(f"{word} {', '.join(map(str, of))}" for word, of in _places(one))
    cause = f"{one.cause}: {where}" if where else one.cause
    return f"HANG  {cause} ({seen})\n  {clean(one.text)}"


def _places(one: HangStatus) -> list[tuple[str, tuple[int, ...]]]:
    named = (("rank", one.ranks), ("node", one.nodes))
    return [(word if len(of) == 1 else f"{word}s", of) for word, of in named if of]


def _verdict(one: SlowVerdict) -> str:
    lost = f"  costs {one.lost_node_seconds_per_hour:.0f} node-seconds an hour"
    causes = [f"  {clean(text)}" for text in one.considered]
    return "\n".join([f"SLOW  {clean(one.text)}", lost, *causes])


def _row(one: RankHealth, step: float) -> tuple[str, ...]:
    guessed = "~" if one.step_guessed else ""
    known = one.local_seconds > 0
    share = one.lag_seconds / step if step else 0.0
    return (
        str(one.rank),
        str(one.node_rank),
        f"{guessed}{one.step}",
        f"{one.local_seconds:.3g} s" if known else "-",
        f"{share:+.1%}" if known else "-",
        "#" * min(BAR, round(BAR * max(0.0, share) / FULL)),
    )
