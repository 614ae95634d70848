"""The agent's exit code, and its plan for a signal that ends it."""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Collection, Sequence
from typing import Final

from holdfast_wire.messages import LeaveOutcome


class ExitCode(enum.IntEnum):
    """Exit code for a shell, a kubelet or the local runner; for signal N it is 128 + N."""

    SUCCESS = 0
    """The job succeeded, or this node was released."""
    FAILED = 1
    """The job failed, or this agent could not go on."""
    BAD_INPUT = 2
    """A flag or a variable is wrong; nothing was started."""
    REPLACED = 75
    """Another agent took this node's place."""


_BY_OUTCOME = {
    LeaveOutcome.SUCCEEDED: ExitCode.SUCCESS,
    LeaveOutcome.RELEASED: ExitCode.SUCCESS,
    LeaveOutcome.FAILED: ExitCode.FAILED,
    LeaveOutcome.REPLACED: ExitCode.REPLACED,
    LeaveOutcome.UNSPECIFIED: ExitCode.FAILED,
}


def is_job_over(outcome: LeaveOutcome) -> bool:
    """Return True if a Leave ends all agents of the job: no rank trains or commits after it.

    A released agent may have successors at once, and others go on.
    """
    return outcome in (LeaveOutcome.SUCCEEDED, LeaveOutcome.FAILED)


def exit_code(outcome: LeaveOutcome, signal_number: int | None) -> int:
    """Return the exit code after a Leave.

    signal_number: signal that the agent got before; it shows unless the job had ended anyway.
    """
    if signal_number is not None and outcome in (LeaveOutcome.RELEASED, LeaveOutcome.UNSPECIFIED):
        return after_signal(signal_number)
    return int(_BY_OUTCOME[outcome])


def after_signal(signal_number: int) -> int:
    """Return the exit code of an agent that a signal ended."""
    return 128 + signal_number


_OF_SHELLS: Final = frozenset({2, 3})
"""SIGINT and SIGQUIT, by POSIX's numbers."""


def heeded(
    numbers: Sequence[int], ignored: Collection[int], *, asked_for: bool = False
) -> tuple[int, ...]:
    """Return the signals that end the agent.

    `nohup` ignores SIGHUP before it starts a program: a signal that was ignored stays ignored.
    SIGINT and SIGQUIT are the exception: a shell ignores both for every command of a script that
    ends with `&`, and Ctrl-C must still end the nodes that a script starts side by side.

    numbers: Signals that would end the agent.
    ignored: Signals that were ignored when the agent started.
    asked_for: True: the user named `numbers`, so all of them count.
    """
    return tuple(n for n in numbers if asked_for or n in _OF_SHELLS or n not in ignored)


class SignalStep(enum.Enum):
    """Reaction of the agent to a signal."""

    NOTICE = "notice"
    """Tell the master, train on, wait for its Leave."""
    FORWARD = "forward"
    """Signal the workers, SIGKILL after the grace, then end."""
    NOW = "now"
    """SIGKILL the workers and end."""


@dataclasses.dataclass(frozen=True, slots=True)
class SignalPlan:
    """Plan of the agent after a signal."""

    step: SignalStep
    leave_wait_seconds: float
    """NOTICE: longest wait for a Leave, s."""
    stop_grace_seconds: float
    """Signal to SIGKILL for the workers, after that wait, s."""
    reason: str


MAX_STOP_SHARE_SECONDS = 5.0
"""Workers get the last part of the grace: at most this, at most half of it."""


def on_signal(
    *, earlier: int, managed: bool, connected: bool, grace_seconds: float, stop_seconds: float
) -> SignalPlan:
    """Decide on a signal that ends the agent.

    earlier: number of such signals before this one.
    managed: a master runs the job and can move its work elsewhere; False: standalone.
    connected: the master gets a notice right now.
    grace_seconds: from the first signal to the agent's end, s.
    stop_seconds: signal to SIGKILL for the workers of a standalone run, s.
    """
    if earlier > 0:
        return SignalPlan(SignalStep.NOW, 0.0, 0.0, "it is the second signal")
    if not managed:
        reason = "the run ends with its only node"
        return SignalPlan(SignalStep.FORWARD, 0.0, stop_seconds, reason)
    share = min(MAX_STOP_SHARE_SECONDS, grace_seconds / 2)
    if not connected:
        return SignalPlan(SignalStep.FORWARD, 0.0, share, "there is no master to tell")
    reason = "the master may save and move the work"
    return SignalPlan(SignalStep.NOTICE, grace_seconds - share, share, reason)
