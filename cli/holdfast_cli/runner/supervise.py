"""Runs one local job: plans, carries the plan out, watches the processes, ends everything.

The loop is level-triggered: whatever happens only wakes it up, and the plan says what to do.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import signal
import time
from collections.abc import Callable

from holdfast_cli import ending, watching
from holdfast_cli.failures import CliError
from holdfast_cli.home import JobHome, JobRecord
from holdfast_cli.output import say
from holdfast_cli.runner import clock, last_words, processes
from holdfast_cli.runner.extra_roles import ExtraRoles
from holdfast_cli.runner.identities import LocalIdentities
from holdfast_cli.runner.local_job import LocalJob
from holdfast_cli.runner.logs import follow_logs
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
from holdfast_operator.plan.pods import Role
from holdfast_operator.plan.view import Said
from holdfast_wire.messages import JobPhase, JobStatus, StopWish

_log = logging.getLogger(__name__)
_INTERRUPT_GRACE_S = 15.0
"""SIGINT to SIGKILL: time for SIGTERM to the ranks; a second SIGINT ends it at once."""
_EXIT_INTERRUPTED = 130
_POLL_S = 0.05

Director = Callable[[JobHome, watching.View, Callable[[], bool]], None]
"""Acts on the running job from a thread of its own until the last argument says True (the demo)."""


class Supervisor:
    """One run of one job."""

    def __init__(
        self,
        job: LocalJob,
        home: JobHome,
        record: JobRecord,
        *,
        show_logs: bool,
        surroundings: Surroundings,
    ) -> None:
        self._job = job
        self._home = home
        self._show_logs = show_logs
        self._changed = asyncio.Event()
        self._interrupts = 0
        self._interrupted_at = 0.0
        self._ended = False
        self._finished: FinishJob | None = None
        self._summary = ""
        self._extra_roles = ExtraRoles()
        self._last = JobStatus()
        """The newest status with a loss: at its end a job has no ranks that could say one."""
        identities = LocalIdentities(home, record.uid)
        identities.write_fixed()
        self._processes = PodProcesses(
            job, home, record, identities, self._pod_changed, surroundings
        )
        self._sync = MasterSync(home, record.uid, job.first_messages, self._heard, job.refusal)

    async def main(self, view: watching.View, director: Director | None) -> int:
        """Run the job to its end; return the exit code."""
        processes.become_subreaper()
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, self._interrupt)
        sync = asyncio.create_task(self._sync.run(self._home.endpoint))
        shown = [asyncio.create_task(asyncio.to_thread(self._follow, view))]
        if director is not None:
            acting = asyncio.to_thread(director, self._home, view, lambda: self._ended)
            shown.append(asyncio.create_task(acting))
        showing_logs = (
            [asyncio.create_task(follow_logs(self._home.logs, view))] if self._show_logs else []
        )
        try:
            await self._work(view)
        finally:
            self._ended = True
            sync.cancel()
            for task in showing_logs:
                task.cancel()
            await self._processes.end_all()
            await asyncio.gather(sync, *shown, *showing_logs, return_exceptions=True)
            left = await asyncio.to_thread(processes.sweep)
            if left:
                _log.error("processes that do not end: %s", left)
        say(self._summary)
        return self._exit_code()

    async def _work(self, view: watching.View) -> None:
        while True:
            # Before the plan: what happens while it is carried out calls for another one.
            self._changed.clear()
            made = self._job.plan(clock.now())
            for action in made.actions:
                await self._do(action)
            for line in self._extra_roles.news(made):
                view.note(line)
            if await self._is_over():
                return
            # Not `wait_for`: it forgets a cancellation that comes together with a change.
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
        late = clock.now() - self._interrupted_at > _INTERRUPT_GRACE_S
        impatient = self._interrupts > 1 or (bool(self._interrupts) and late)
        if self._finished is None and not impatient:
            return False
        self._summary = await asyncio.to_thread(self._conclude, self._finished)
        return True

    def _patience(self, requeue_after: float | None) -> float:
        ending = self._interrupts or self._job.view.outcome is not None
        return min(requeue_after or 5.0, 0.2 if ending else 5.0)

    def _conclude(self, finished: FinishJob | None) -> str:
        """Keep what the master says last, for who asks later; return the summary."""
        silence = ""
        try:
            found = last_words.ask(self._home)
        except CliError as error:
            silence = f"; its master did not say more: {error}"
            found = last_words.silent(self._job.job.name, self._job.uid, self._job.view.status)
        end = _end(finished) if finished is not None else None
        found = last_words.with_end(found, end, self._last)
        kept = self._keep(found)
        if silence:
            return f"The job ended ({found.status.reason}: {found.status.text}){silence}{kept}"
        return summary(found.status, found.goodput) + kept

    def _keep(self, found: ending.Ending) -> str:
        try:
            ending.write(self._home, found)
        except OSError as error:
            return f"\nHow it ended could not be kept for `holdfast status`: {error}"
        return ""

    def _exit_code(self) -> int:
        if self._interrupts:
            return _EXIT_INTERRUPTED
        return 0 if self._finished is not None and self._finished.succeeded else 1

    def _follow(self, view: watching.View) -> None:
        while self._home.endpoint() is None and not self._ended:
            time.sleep(_POLL_S)
        with view, contextlib.suppress(CliError):
            # The runner makes a new master, however long that takes.
            watching.Follower(self._home, view, give_up_s=math.inf).run(lambda: self._ended)

    def _heard(self, said: Said) -> None:
        self._job.hear(said, clock.now())
        if isinstance(said, JobStatus) and said.has_loss:
            self._last = said
        self._changed.set()

    def _pod_changed(self, name: str) -> None:
        pod = self._job.find(name)
        if pod is not None and pod.slot.role is Role.WORKER:
            self._sync.send(pod.observation())
        self._changed.set()

    def _interrupt(self) -> None:
        self._interrupts += 1
        self._job.stopping = True
        self._interrupted_at = self._interrupted_at or clock.now()
        self._sync.send(StopWish(reason="Interrupted", grace_seconds=_INTERRUPT_GRACE_S))
        self._changed.set()


def _end(finished: FinishJob) -> JobStatus:
    phase = JobPhase.SUCCEEDED if finished.succeeded else JobPhase.FAILED
    return JobStatus(phase=phase, reason=finished.reason, text=finished.text)
