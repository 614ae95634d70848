"""Runs one local job: plans, carries the plan out, watches the processes, ends everything.

The loop is level-triggered: an event only wakes it up, and the plan decides on the actions.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import logging
import math
import time
from collections.abc import Callable, Mapping
from typing import Any

from holdfast_cli import final_state, live_view
from holdfast_cli.client import JobClient
from holdfast_cli.errors import CliError
from holdfast_cli.final_state import FinalState
from holdfast_cli.job_directory import JobHome
from holdfast_cli.output import say
from holdfast_cli.runner import processes
from holdfast_cli.runner.certificates import LocalIdentities
from holdfast_cli.runner.local_job import ExtraRoles, LocalJob, now
from holdfast_cli.runner.pod_logs import follow_logs
from holdfast_cli.runner.pods import PodProcesses, Surroundings
from holdfast_cli.runner.sync import MasterSync
from holdfast_cli.summary import summary
from holdfast_operator.plan.actions import (
    Action,
    CreatePod,
    DeleteJob,
    DeletePod,
    FinishJob,
    ScaleJob,
)
from holdfast_operator.plan.inputs import grace_of
from holdfast_operator.plan.pods import Role
from holdfast_operator.plan.view import Said
from holdfast_wire import messages as wire

_log = logging.getLogger(__name__)
_INTERRUPT_GRACE_SECONDS = 15.0
"""First signal to SIGKILL, s, where the worker's template has no terminationGracePeriodSeconds:
time to save and stop, and for SIGTERM to the ranks; a second signal ends it at once."""
_POLL_SECONDS = 0.05
_ANSWER_SECONDS = 3.0
"""Deadline of each answer, s; after a second Ctrl-C there is no long wait for a hung master."""
_INTERRUPTED = wire.JobStatus(
    phase=wire.JobPhase.FAILED,
    reason="Interrupted",
    text="holdfast run was interrupted before the master could end the job",
)

Director = Callable[[JobHome, live_view.View, Callable[[], bool]], None]
"""Acts on the running job on a thread of its own until the last argument returns True (the
demo)."""


class Supervisor:
    """One run of one job."""

    def __init__(
        self, job: LocalJob, home: JobHome, *, show_logs: bool, surroundings: Surroundings
    ) -> None:
        self._job = job
        self._home = home
        self._show_logs = show_logs
        self._changed = asyncio.Event()
        self._signals: list[int] = []
        """Signals that asked for the end, in order."""
        self._interrupted_at = 0.0
        self._grace = stop_grace(job.job.spec.worker_template)
        self._ended = False
        self._finished: FinishJob | None = None
        self._summary = ""
        self._extra_roles = ExtraRoles()
        self._last = wire.JobStatus()
        """Newest status with a loss: at its end a job has no ranks that could report one."""
        identities = LocalIdentities(home, job.uid, surroundings.address)
        identities.write_fixed()
        self._processes = PodProcesses(job, home, identities, self._pod_changed, surroundings)
        self._sync = MasterSync(home, job, self._received)

    async def main(self, view: live_view.View, director: Director | None) -> int:
        """Run the job to its end; return the exit code."""
        processes.become_subreaper()
        loop = asyncio.get_running_loop()
        for number in processes.ending_signals():
            loop.add_signal_handler(number, self._interrupt, number)
        sync = asyncio.create_task(self._sync.run(self._home.endpoint))
        shown = [asyncio.create_task(asyncio.to_thread(self._follow, view))]
        if director is not None:
            acting = asyncio.to_thread(director, self._home, view, self._is_ending)
            shown.append(asyncio.create_task(acting))
        printed = asyncio.Event()
        if self._show_logs:
            shown.append(asyncio.create_task(follow_logs(self._home.logs, view, printed)))
        try:
            await self._work(view)
        finally:
            self._ended = True
            sync.cancel()
            await self._processes.end_all()
            printed.set()
            await asyncio.gather(sync, *shown, return_exceptions=True)
            left = await asyncio.to_thread(processes.sweep)
            if left:
                _log.error("processes that do not end: %s", left)
        say(self._summary)
        return self._exit_code()

    def _is_ending(self) -> bool:
        """Return True if the job has ended, or was asked to: no more faults for it then."""
        return self._ended or bool(self._signals)

    async def _work(self, view: live_view.View) -> None:
        while True:
            # Before the plan: an event during its execution calls for another plan.
            self._changed.clear()
            made = self._job.plan(now())
            for action in made.actions:
                await self._do(action)
            for line in self._extra_roles.news(made):
                view.note(line)
            if await self._is_over():
                return
            # Not `wait_for`: it loses a cancellation that comes together with a change.
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._patience(made.requeue_after)):
                    await self._changed.wait()

    async def _do(self, action: Action) -> None:
        match action:
            case CreatePod():
                await self._processes.create(action)
            case DeletePod():
                if action.slot.role is not Role.MASTER:
                    self._processes.delete(action.name, float(action.grace_s))
            case ScaleJob():
                result = self._job.scale(action)
                if result.ok:
                    self._sync.send(self._job.spec_message())
                self._sync.send(result)
                self._changed.set()
            case FinishJob():
                self._finished = action
            case DeleteJob():
                _log.info("nothing to delete: %s", action.reason)

    async def _is_over(self) -> bool:
        late = now() - self._interrupted_at > self._grace
        impatient = len(self._signals) > 1 or (bool(self._signals) and late)
        if self._finished is None and not impatient:
            return False
        self._summary = await asyncio.to_thread(self._conclude, self._finished)
        return True

    def _patience(self, requeue_after: float | None) -> float:
        ending = bool(self._signals) or self._job.view.outcome is not None
        return min(requeue_after or 5.0, 0.2 if ending else 5.0)

    def _conclude(self, finished: FinishJob | None) -> str:
        """Write the master's final state, for later commands; return the summary."""
        silence = ""
        try:
            found = ask_final_state(self._home)
        except CliError as error:
            silence = f"; its master did not say more: {error}"
            found = silent(self._job.job.name, self._job.uid, self._job.view.status)
        end = _end(finished) if finished is not None else None
        found = with_end(found, end, self._last)
        kept = self._keep(found)
        if silence:
            return f"The job ended ({found.status.reason}: {found.status.text}){silence}{kept}"
        logs = "" if found.status.phase is wire.JobPhase.SUCCEEDED else f"\nLogs: {self._home.logs}"
        return summary(found.status, found.goodput or wire.GetGoodputResponse()) + logs + kept

    def _keep(self, found: FinalState) -> str:
        try:
            final_state.write(self._home, found)
        except OSError as error:
            return f"\nHow it ended could not be kept for `holdfast status`: {error}"
        return ""

    def _exit_code(self) -> int:
        if self._signals:
            return 128 + self._signals[0]
        return 0 if self._finished is not None and self._finished.succeeded else 1

    def _follow(self, view: live_view.View) -> None:
        while self._home.endpoint() is None and not self._ended:
            time.sleep(_POLL_SECONDS)
        with view, contextlib.suppress(CliError):
            # The runner starts a new master, however long that takes.
            live_view.Follower(self._home, view, give_up_s=math.inf).run(lambda: self._ended)

    def _received(self, said: Said | wire.StrikesReported) -> None:
        if isinstance(said, wire.StrikesReported):
            return  # there is no other job here; the history ends with this one
        self._job.receive(said, now())
        if isinstance(said, wire.JobStatus) and said.has_loss:
            self._last = said
        self._changed.set()

    def _pod_changed(self, name: str) -> None:
        pod = self._job.find(name)
        if pod is not None and pod.slot.role is Role.WORKER:
            self._sync.send(pod.observation())
        self._changed.set()

    def _interrupt(self, number: int) -> None:
        self._signals.append(number)
        self._job.stopping = True
        self._interrupted_at = self._interrupted_at or now()
        self._sync.send(wire.StopRequest(reason="Interrupted", grace_seconds=self._grace))
        self._changed.set()


def stop_grace(template: Mapping[str, Any]) -> float:
    """Return the time that a job has from a first signal on, s."""
    given = template["spec"].get("terminationGracePeriodSeconds")
    return _INTERRUPT_GRACE_SECONDS if given is None else float(grace_of(template))


def _end(finished: FinishJob) -> wire.JobStatus:
    phase = wire.JobPhase.SUCCEEDED if finished.succeeded else wire.JobPhase.FAILED
    return wire.JobStatus(phase=phase, reason=finished.reason, text=finished.text)


def ask_final_state(home: JobHome) -> FinalState:
    """Return the master's present answers, at the job's end.

    Raises:
        CliError: The master does not answer, or refuses.
    """
    with JobClient(home) as client:
        return FinalState(
            job=client.call(wire.GetJobRequest(), _ANSWER_SECONDS),
            nodes=client.call(wire.ListNodesRequest(), _ANSWER_SECONDS),
            events=client.events(timeout_s=_ANSWER_SECONDS),
            goodput=client.call(wire.GetGoodputRequest(), _ANSWER_SECONDS),
        )


def silent(name: str, uid: str, last: wire.JobStatus | None) -> FinalState:
    """Return the final state of a job whose master cannot be asked any more."""
    status = dataclasses.replace(last or wire.JobStatus(), name=name, uid=uid)
    return FinalState(job=wire.GetJobResponse(status=status))


def with_end(
    ending: FinalState, end: wire.JobStatus | None, last_loss: wire.JobStatus
) -> FinalState:
    """Complete a final state that the master had not made final: with `end` and the last loss."""
    status = ending.status
    if status.phase not in live_view.FINAL_PHASES:
        end = end or _INTERRUPTED
        status = dataclasses.replace(status, phase=end.phase, reason=end.reason, text=end.text)
    if last_loss.has_loss and not status.has_loss:
        status = dataclasses.replace(status, loss=last_loss.loss, has_loss=True)
    return dataclasses.replace(ending, job=dataclasses.replace(ending.job, status=status))
