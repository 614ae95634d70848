"""Exit codes, and what a signal leads to."""

from __future__ import annotations

import signal

import pytest

from holdfast_agent.policies import exit_codes
from holdfast_agent.policies.exit_codes import SignalStep
from holdfast_wire.messages import LeaveOutcome


@pytest.mark.parametrize(
    ("outcome", "signalled", "code"),
    [
        pytest.param(LeaveOutcome.SUCCEEDED, None, 0, id="succeeded"),
        pytest.param(LeaveOutcome.RELEASED, None, 0, id="released"),
        pytest.param(LeaveOutcome.FAILED, None, 1, id="failed"),
        pytest.param(LeaveOutcome.REPLACED, None, 75, id="replaced"),
        pytest.param(LeaveOutcome.UNSPECIFIED, None, 1, id="unspecified"),
        pytest.param(LeaveOutcome.RELEASED, signal.SIGTERM, 143, id="released-after-sigterm"),
        pytest.param(LeaveOutcome.RELEASED, signal.SIGINT, 130, id="released-after-sigint"),
        pytest.param(LeaveOutcome.SUCCEEDED, signal.SIGTERM, 0, id="succeeded-anyway"),
        pytest.param(LeaveOutcome.FAILED, signal.SIGTERM, 1, id="failed-anyway"),
        pytest.param(LeaveOutcome.REPLACED, signal.SIGTERM, 75, id="replaced-anyway"),
    ],
)
def test_the_exit_code_says_how_the_job_ended(
    outcome: LeaveOutcome, signalled: int | None, code: int
) -> None:
    """A signal shows in the code unless the job had come to its own end."""
    assert exit_codes.exit_code(outcome, signalled) == code


def test_every_outcome_has_an_exit_code() -> None:
    """No outcome that a master can send leaves the agent without a code."""
    for outcome in LeaveOutcome:
        assert isinstance(exit_codes.exit_code(outcome, None), int)


@pytest.mark.parametrize(
    ("earlier", "managed", "connected", "step", "wait", "grace"),
    [
        pytest.param(0, True, True, SignalStep.NOTICE, 25.0, 5.0, id="notice"),
        pytest.param(0, True, False, SignalStep.FORWARD, 0.0, 5.0, id="nobody-to-tell"),
        pytest.param(0, False, True, SignalStep.FORWARD, 0.0, 12.0, id="standalone"),
        pytest.param(1, True, True, SignalStep.NOW, 0.0, 0.0, id="second-signal"),
        pytest.param(1, False, True, SignalStep.NOW, 0.0, 0.0, id="second-standalone"),
    ],
)
def test_a_signal_is_a_notice_where_somebody_can_act_on_it(
    *, earlier: int, managed: bool, connected: bool, step: SignalStep, wait: float, grace: float
) -> None:
    """The master gets time to save; without one the workers get the signal; twice means now."""
    plan = exit_codes.on_signal(
        earlier=earlier, managed=managed, connected=connected, grace_seconds=30.0, stop_seconds=12.0
    )
    assert (plan.step, plan.leave_wait_seconds, plan.stop_grace_seconds) == (step, wait, grace)
    assert plan.reason


@pytest.mark.parametrize("grace", [0.0, 3.0, 10.0, 25.0])
def test_waiting_and_stopping_fit_into_the_grace(grace: float) -> None:
    """However short the grace, workers are not SIGKILLed by the kubelet before the agent does."""
    plan = exit_codes.on_signal(
        earlier=0, managed=True, connected=True, grace_seconds=grace, stop_seconds=30.0
    )
    assert plan.leave_wait_seconds + plan.stop_grace_seconds == grace


@pytest.mark.parametrize(
    ("ignored", "asked_for", "heeded"),
    [
        pytest.param((), False, "TERM INT HUP QUIT", id="none-is-ignored"),
        pytest.param(("HUP",), False, "TERM INT QUIT", id="nohup"),
        pytest.param(("HUP",), True, "TERM INT HUP QUIT", id="nohup-and-asked-for"),
        pytest.param(("INT", "QUIT"), False, "TERM INT HUP QUIT", id="in-the-background-of-sh"),
        pytest.param(("TERM", "HUP"), False, "INT QUIT", id="trapped-by-the-caller"),
    ],
)
def test_a_signal_that_was_ignored_at_the_start_stays_so(
    ignored: tuple[str, ...], heeded: str, *, asked_for: bool
) -> None:
    """Unless a shell ignored it for `&`, or --signals-to-handle names it."""
    numbers = tuple(getattr(signal, f"SIG{name}") for name in ("TERM", "INT", "HUP", "QUIT"))
    before = tuple(getattr(signal, f"SIG{name}") for name in ignored)
    left = exit_codes.heeded(numbers, before, asked_for=asked_for)
    assert left == tuple(getattr(signal, f"SIG{name}") for name in heeded.split())
