"""The agent's use of the shared page: its lease, samples of the ranks, marks of dying ranks.

Nothing here kills or starts a process.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import logging
import threading
import time
from collections.abc import Callable
from typing import Any

from holdfast.page import Page, PageError
from holdfast.robust_mark import OWNER_DIED, RobustMark
from holdfast_agent.policies import liveness, rank_progress, round_phases, schedules
from holdfast_agent.policies.collective_steps import StepGuess
from holdfast_agent.policies.round_phases import Orders, RoundPhase
from holdfast_agent.workers.rounds import Round
from holdfast_agent.workers.runner import RoundRunner
from holdfast_agent.zygote.process_tree import end_of_dying
from holdfast_wire.messages import Heartbeat, RankSection, SetBarrier, SetSchedule
from holdfast_wire.tiers import by_tier

log = logging.getLogger(__name__)

RENEWALS = 8
"""Of the lease in its time: every 0.5 s in one of 4 s, at the instants of the heartbeats."""
FAST_SECONDS = 0.01
"""Poll interval while it waits for a first step, an acknowledgement or a barrier, s."""
PATIENCE_SECONDS = 60.0
"""A round whose script uses no SDK is polled at that rate only for this long, s."""
DEFAULT_HEARTBEAT_SECONDS = 0.5
WAIT_SECONDS = 5.0
"""Longest wait, s. A wait ends at once when a mark changes; this only bounds unknown cases."""
JOIN_SECONDS = 0.02
"""Seconds between two wake-ups of a thread that is to end: it may not be asleep yet."""
STOP_TRIES = 50


class Lease:
    """A word in the shared page that shows that this process is alive.

    The event loop itself renews it, so the renewals stop when the loop is stuck. The zygote kills
    the workers when the word is stale; here this process notices that it stood still.
    """

    def __init__(self, page: Page) -> None:
        """Have the word in `page`."""
        self._page = page
        self._held = True
        """False: it ran out, and the workers are not known to be dead yet."""

    def resume(self) -> None:
        """Begin it, or begin it again: no process of an old round lives, and workers may start."""
        self._held = True
        self._page.begin_lease(time.monotonic_ns())

    async def run(
        self, on_expired: Callable[[float], bool], pause: Callable[[float], float]
    ) -> None:
        """Renew until cancelled.

        on_expired: Kills the workers, called with the lease's age in s; returns False if there
            were none.
        pause: Returns the time to the next work of a period, both in s.
        """
        while True:
            self.tick(time.monotonic_ns(), on_expired)
            await asyncio.sleep(pause(self._page.lease_limit_ns * 1e-9 / RENEWALS))

    def tick(self, now_ns: int, on_expired: Callable[[float], bool]) -> None:
        """Renew, or report that the lease has run out meanwhile: see `policies.liveness`."""
        if not self._held:
            return
        age_ns = self._page.lease_age_ns(now_ns) or 0
        if not liveness.lease_ran_out(age_ns=age_ns, limit_ns=self._page.lease_limit_ns):
            self._page.renew_lease(now_ns)
            return
        self._held = not on_expired(age_ns * 1e-9)
        if self._held:
            self._page.begin_lease(now_ns)  # no worker could have outlived it


class HeartbeatClock:
    """Instants of this node's heartbeats, at which its other regular work is due too."""

    def __init__(self, node_rank: int) -> None:
        """Beat at the default interval until a master sets another one."""
        self._node_rank = node_rank
        self.interval_seconds = DEFAULT_HEARTBEAT_SECONDS
        """Time between heartbeats; the master sets it."""

    def pause(self, period: float) -> float:
        """Return the time to the next regular work of a period, at a heartbeat's instant, s."""
        return schedules.aligned_pause(self._node_rank, self.interval_seconds, period, time.time())

    def spread(self) -> float:
        """Return the time that a message waits which all nodes have at the same instant, s."""
        return schedules.group_delay(self._node_rank, self.interval_seconds)


class PageWatch:
    """Samples the ranks of the runner's round."""

    def __init__(
        self,
        page: Page,
        runner: RoundRunner,
        report: Callable[[Any, int], None],
        clock: HeartbeatClock,
        guess: Callable[[int, int], StepGuess | None] = lambda *_: None,
    ) -> None:
        """`report` sends (message, round) to the master.

        guess: returns the guessed progress of (local rank, round), for a script without the SDK.
        """
        self._guess = guess
        self._page = page
        self._runner = runner
        self._report = report
        self._clock = clock
        self._sequence = 0
        self.saving = False
        """True: a rank was inside a checkpoint at the last heartbeat."""

    def set_barrier(self, barrier: SetBarrier, round_number: int) -> None:
        """Ask the ranks of a round to save after a step."""
        number, step = barrier.barrier_id, barrier.step

        def write(slot: int) -> None:
            self._page.set_barrier(slot, number, step, goes_on=barrier.goes_on)

        current = self._tell(round_number, write, f"arm {number} at step {step}")
        if current is not None:
            current.barrier = barrier
            self._runner.changed.set()

    def schedule(self, order: SetSchedule, round_number: int) -> None:
        """Give the ranks of a round a new schedule of saves.

        Heartbeats report that the ranks have seen it: there is no hurry.
        """
        number, every = order.schedule_id, by_tier(order.intervals)

        def write(slot: int) -> None:
            self._page.offer_schedule(slot, number, step=order.step, every=every)
            if order.confirmed:
                self._page.confirm_schedule(slot, number)

        self._tell(round_number, write, f"schedule {number} from step {order.step}")

    def _tell(self, number: int, write: Callable[[int], None], what: str) -> Round | None:
        """Write to the slots of a round's ranks; return the round, None: a warning says why not."""
        current = self._runner.running(number)
        if current is None:
            log.warning("%s: round %d does not run here", what, number)
            return None
        try:
            for slot in range(current.size):
                write(slot)
        except PageError as error:
            log.warning("%s: %s", what, error)
            return None
        return current

    async def beat(self) -> None:
        """Send heartbeats until cancelled."""
        while True:
            self.heartbeat()
            await asyncio.sleep(self._clock.pause(self._clock.interval_seconds))

    async def poll(self) -> None:
        """Poll often while something is awaited, until cancelled."""
        while True:
            if self.look():
                await asyncio.sleep(FAST_SECONDS)
            else:
                self._runner.changed.clear()
                await self._runner.changed.wait()

    def heartbeat(self) -> None:
        """Send one heartbeat."""
        current = self._runner.current
        self._sequence += 1
        if current is None or current.dead:
            self._report(Heartbeat(sequence=self._sequence), current.number if current else 0)
            return
        now = time.monotonic_ns()
        samples = current.ranks(self._page)
        unix = time.time()
        progress = tuple(
            rank_progress.guessed(
                rank_progress.progress(rank, sample, current.number, now),
                self._guess(rank, current.number),
                unix,
            )
            for rank, sample in samples.items()
        )
        self.saving = any(entry.section is RankSection.CHECKPOINT for entry in progress)
        saving = rank_progress.saving(samples)
        message = Heartbeat(sequence=self._sequence, ranks=progress, saving=saving)
        self._report(message, current.number)
        if current.armed or not current.first_step_reported:
            self._runner.changed.set()

    def look(self) -> bool:
        """Report what has just become true; return True if something is still awaited."""
        current = self._runner.live
        if current is None or Orders.KILLED in current.orders:
            return False
        samples = current.ranks(self._page)
        awaited = self._look_for_first_step(current, samples)
        return self._look_for_barrier(current, samples) or awaited

    def _look_for_first_step(self, current: Round, samples: dict[int, rank_progress.Rank]) -> bool:
        if current.first_step_reported or self._runner.phase is not RoundPhase.STARTING:
            return False
        found = rank_progress.first_step(samples, current.number)
        if found is None:
            age = time.monotonic() - current.ordered_at
            return age < PATIENCE_SECONDS or any(r.sample.attached for r in samples.values())
        step, at_ns = found
        current.first_step_reported = True
        self._runner.first_step()
        message = dataclasses.replace(
            current.started(self._runner.cold_reason),
            first_step=True,
            step=step,
            first_step_seconds=max(0.0, at_ns * rank_progress.NS - current.ordered_at),
        )
        self._report(message, current.number)
        return False

    def _look_for_barrier(self, current: Round, samples: dict[int, rank_progress.Rank]) -> bool:
        if current.barrier is None or current.barrier_reported:
            return False
        ack = rank_progress.barrier_ack(samples, current.armed)
        if ack is not None and current.acked != current.armed:
            current.acked = current.armed
            ack = dataclasses.replace(ack, goes_on=current.barrier.goes_on)
            self._report(ack, current.number)
        if current.barrier.goes_on:
            return current.acked != current.armed and not current.all_exited
        reached = rank_progress.barrier(samples)
        if reached is not None:
            current.barrier_reported = True
            self._report(reached, current.number)
            return False
        return not current.all_exited


class DeathWatch:
    """Detects dying workers before they are gone, by their marks in the shared page.

    A mark is only a reason to look; the process's entry in /proc decides. One thread per local rank
    sleeps in the kernel. Polling as often would cost more than everything else that an idle agent
    does.
    """

    def __init__(self, page: Page, zygote_pid: Callable[[], int], runner: RoundRunner) -> None:
        """Watch `runner`'s workers, children of the present zygote, whose slots are in `page`."""
        self._page = page
        self._zygote_pid = zygote_pid
        self._runner = runner
        self._marks = tuple(RobustMark(page.fd, slot) for slot in range(page.slots))
        self._threads: list[threading.Thread] = []
        self._stopping = False

    def start(self) -> None:
        """Begin to wait; call it inside the event loop."""
        loop = asyncio.get_running_loop()
        for slot in range(len(self._marks)):
            name = f"hf-mark-{slot}"
            thread = threading.Thread(target=self._wait, args=(slot, loop), name=name, daemon=True)
            thread.start()
            self._threads.append(thread)

    def stop(self) -> None:
        """End the threads; blocks for milliseconds, a second each at most."""
        self._stopping = True
        for mark, thread in zip(self._marks, self._threads, strict=False):
            for _ in range(STOP_TRIES):
                mark.wake()
                thread.join(JOIN_SECONDS)
                if not thread.is_alive():
                    break

    def look(self, local_rank: int) -> None:
        """Tell the runner if this rank is dying of a failure."""
        current = self._runner.current
        pid = current.pids.get(local_rank) if current is not None else None
        if current is None or pid is None or local_rank in current.exits:
            return
        code = end_of_dying(pid, self._zygote_pid())
        stale = self._page.lease_is_stale(time.monotonic_ns())
        if code is not None and round_phases.is_early_news(
            code, current.orders, lease_is_stale=stale
        ):
            log.info("local rank %d (pid %d) is dying: %d", local_rank, pid, code)
            self._runner.on_dying(local_rank, code)

    def _wait(self, slot: int, loop: asyncio.AbstractEventLoop) -> None:
        mark = self._marks[slot]
        word = mark.word()
        while not self._stopping:
            try:
                word = mark.wait(word, WAIT_SECONDS)
            except OSError as error:
                log.info("deaths are heard of from the zygote alone: %s", error)
                return
            if word & OWNER_DIED:
                with contextlib.suppress(RuntimeError):  # the loop has ended
                    loop.call_soon_threadsafe(self.look, slot)
