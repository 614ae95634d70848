"""Decides after a zygote's end: another one is started, after a pause, or the agent ends.

Only the rule; processes, clocks and the report of the failure are in `workers.zygote_restarts`.
"""

from __future__ import annotations

import dataclasses

MAX_FAILED_STARTS = 3
"""Zygotes in a row that end before they are ready: the next one would end in the same way."""
SETTLED_SECONDS = 60.0
"""A zygote that was ready for this long worked: its end is independent of the end before."""
LONGEST_PAUSE_SECONDS = 30.0


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ZygoteHistory:
    """History of the zygotes that have ended."""

    was_ready: bool = False
    """True: one of them was ready once."""
    failed_starts: int = 0
    """Number of the last ones, without a gap, that ended before they were ready."""
    short_lives: int = 0
    """Number of the last ones, without a gap, that ended before they had settled."""

    def ended(self, ready_seconds: float | None) -> ZygoteHistory:
        """Return the history after another end.

        ready_seconds: time for which it was ready, s; None: it never was.
        """
        ready = ready_seconds is not None
        settled = ready_seconds is not None and ready_seconds >= SETTLED_SECONDS
        return ZygoteHistory(
            was_ready=self.was_ready or ready,
            failed_starts=0 if ready else self.failed_starts + 1,
            short_lives=0 if settled else self.short_lives + 1,
        )


@dataclasses.dataclass(frozen=True, slots=True)
class RestartVerdict:
    """Verdict on another zygote: start it or not, the pause, and the reason."""

    restart: bool
    pause_seconds: float
    reason: str


def judge(history: ZygoteHistory) -> RestartVerdict:
    """Decide after an end that is in `history`.

    A zygote that never became ready shows a fault of the installation or of an imported module: it
    ends the agent at once. Ends of ready ones are bounded by the job's failure budget alone.
    """
    if not history.was_ready:
        return RestartVerdict(False, 0.0, "it ended before it was ready")
    if history.failed_starts >= MAX_FAILED_STARTS:
        reason = f"{history.failed_starts} in a row ended before they were ready"
        return RestartVerdict(False, 0.0, reason)
    return RestartVerdict(True, _pause(history.short_lives), "one was ready before")


def _pause(short_lives: int) -> float:
    """Return 0, 0, 1, 2, 4, … s: a first end is no reason to wait."""
    if short_lives < 2:
        return 0.0
    return min(LONGEST_PAUSE_SECONDS, 2.0 ** min(short_lives - 2, 10))
