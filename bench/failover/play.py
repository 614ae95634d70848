"""Plays one instant: the scene begins, the master is killed, the job must train again.

Belongs here: the order of things and what each scene entails. Does not belong here: the draw, the
rules.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import os
import signal
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor

from bench.failover.instants import Instant, Scene
from bench.failover.running_job import NODES, KilledJob, newest
from bench.failover.verdict import After, Allowed, Answer, Before, InstantVerdict, judge
from holdfast_cli.errors import MasterRefusedError, MasterUnreachableError
from holdfast_wire.messages import (
    DrainNodeRequest,
    JobPhase,
    JobStatus,
    RestartWorkerRequest,
    ScaleRequest,
)

SETTLED_STEPS = 5
"""Steps of every rank after which the job counts as training again."""
FIRST_STEPS = 3


@dataclasses.dataclass(frozen=True, slots=True)
class Played:
    """The outcome of one instant."""

    instant: Instant
    answer: Answer
    verdict: InstantVerdict
    away_s: float
    """From the kill to the first answer of the last successor."""
    settled_s: float
    """From the kill until all ranks had trained on."""


class Player:
    """Plays instants on one job."""

    def __init__(self, job: KilledJob) -> None:
        """Take a job that has just been started."""
        self._job = job
        self._threads = ThreadPoolExecutor(1, thread_name_prefix="asking")
        self._size = NODES
        self._scenes: Mapping[Scene, Callable[[Instant], Future[object] | None]] = {
            Scene.QUIET: lambda _: None,
            Scene.TWICE: lambda _: None,
            Scene.RESTART: lambda _: self._ask(RestartWorkerRequest(reason="scene")),
            Scene.WORKER: self._kill_rank,
            Scene.SCALE: self._scale,
            Scene.DRAIN: self._drain,
        }

    def close(self) -> None:
        """End the thread that asks."""
        self._threads.shutdown()

    def begin(self) -> None:
        """Wait until the whole job trains."""
        self._settle({NODES}, FIRST_STEPS, {})

    def play(self, instant: Instant) -> Played:
        """Play one instant and judge it."""
        job = self._job
        starts, steps, status = job.starts(), job.steps(), job.status()
        inside = {rank: step for rank, step in newest(steps).items() if rank < status.world_size}
        before = Before(status.round, status.world_size, inside)
        asked = self._scenes[instant.scene](instant)
        time.sleep(instant.delay_s)
        killed_at = time.monotonic()
        away = self._kill(instant)
        answer = _answer(asked)
        if instant.scene is Scene.SCALE and answer is not Answer.GRANTED:
            answer = self._scale_again()
        allowed = _allowed(instant.scene, answer)
        self._follow(before, allowed)
        self._settle(self._sizes(instant, answer), SETTLED_STEPS, newest(job.steps()))
        settled_s = time.monotonic() - killed_at
        done, began = job.steps(), job.starts()[len(starts) :]
        status = job.status()
        new = {rank: lines[len(steps.get(rank, ())) :] for rank, lines in done.items()}
        after = After(round=status.round, world=status.world_size, starts=began, steps=new)
        verdict = judge(before, after, allowed)
        self._repair()
        return Played(instant, answer, verdict, away, settled_s)

    def _kill(self, instant: Instant) -> float:
        at = time.monotonic()
        epoch = self._job.kill_master(keep_journal=instant.journal).epoch
        self._successor(epoch)
        if instant.scene is Scene.TWICE:
            time.sleep(instant.whom * instant.delay_s)
            second = self._job.kill_master(keep_journal=instant.journal)
            self._successor(second.epoch)
        return time.monotonic() - at

    def _successor(self, epoch: int) -> None:
        def there() -> bool:
            found = self._job.home.endpoint()
            return found is not None and found.epoch > epoch

        self._job.wait_for(f"a master after epoch {epoch}", there)

    def _ask(self, request: object) -> Future[object]:
        return self._threads.submit(self._job.ask, request)

    def _kill_rank(self, instant: Instant) -> None:
        pids = self._job.wait_for("the pid of every rank", self._all_pids)
        pid = pids[int(instant.whom * len(pids))]
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)

    def _all_pids(self) -> list[int]:
        pids = self._job.pids()
        return [pids[rank] for rank in sorted(pids)] if len(pids) == self._size else []

    def _scale(self, _: Instant) -> Future[object]:
        self._size = NODES - 1 if self._size == NODES else NODES
        return self._ask(ScaleRequest(replicas=self._size, reason="scene"))

    def _scale_again(self) -> Answer:
        """Ask for the size until the master grants it, as a person does who got no answer."""

        def granted() -> bool:
            with contextlib.suppress(MasterRefusedError):  # the runner is not back yet
                self._job.ask(ScaleRequest(replicas=self._size, reason="scene, again"))
                return True
            return False

        self._job.wait_for("a granted scale", granted)
        return Answer.GRANTED

    def _drain(self, instant: Instant) -> Future[object]:
        return self._ask(DrainNodeRequest(node_rank=int(instant.whom * self._size), reason="scene"))

    def _sizes(self, instant: Instant, answer: Answer) -> set[int]:
        """Return the sizes that the next world may have.

        A drained node may be missing. A master that begins anew wants all nodes, so the node may
        have been replaced already.
        """
        asked = instant.scene is Scene.DRAIN and answer is not Answer.REFUSED
        return {self._size - 1, self._size} if asked else {self._size}

    def _follow(self, before: Before, allowed: Allowed) -> None:
        """Wait for the round that must come; a barrier before may take its whole deadline."""
        if allowed.least_rounds:
            self._job.wait_for(
                f"a round above {before.round}", lambda: self._job.status().round > before.round
            )

    def _settle(self, sizes: Collection[int], steps: int, seen: Mapping[int, int]) -> None:
        """Wait for a world of one of `sizes` in which every rank has taken `steps` new steps."""

        def settled() -> JobStatus | None:
            status = self._job.status()
            if status.phase is not JobPhase.TRAINING or status.world_size not in sizes:
                return None
            lines = self._job.steps()
            done = [_taken(lines.get(rank, ()), status.round) for rank in range(status.world_size)]
            fresh = [sum(n > seen.get(rank, 0) for n in done[rank]) for rank in range(len(done))]
            return status if all(count >= steps for count in fresh) else None

        self._job.wait_for(f"a world of {sorted(sizes)} that trains", settled)

    def _repair(self) -> None:
        """Fetch a drained node back, so that the next scene has all of them."""
        gone = set(range(self._size)) - {
            node.node_rank for node in self._job.nodes().values() if node.ranks
        }
        if self._job.status().world_size == self._size:
            return
        for rank in sorted(gone):
            fetch = functools.partial(self._fetch, rank)
            self._job.wait_for(f"node {rank} may come back", fetch)
        self._settle({self._size}, FIRST_STEPS, newest(self._job.steps()))

    def _fetch(self, rank: int) -> bool:
        """Ask for the drained node back; return True once the world is whole or the master agrees.

        The master refuses until the runner has seen the node's end.
        """
        if self._job.status().world_size == self._size:
            return True
        try:
            self._job.ask(RestartWorkerRequest(node_rank=rank, reason="the scene is over"))
        except MasterRefusedError:
            return False
        return True


def _taken(lines: Iterable[tuple[int, int]], round_number: int) -> list[int]:
    return [step for at, step in lines if at == round_number]


def _answer(asked: Future[object] | None) -> Answer:
    if asked is None:
        return Answer.NOTHING_ASKED
    try:
        asked.result(timeout=60.0)
    except MasterRefusedError:
        return Answer.REFUSED
    except MasterUnreachableError:
        return Answer.UNKNOWN
    return Answer.GRANTED


def _allowed(scene: Scene, answer: Answer) -> Allowed:
    if scene in {Scene.QUIET, Scene.TWICE} or answer is Answer.REFUSED:
        return Allowed()
    if scene is Scene.WORKER:
        return Allowed(least_rounds=1, most_rounds=1, abrupt=True)
    least = 1 if answer is Answer.GRANTED else 0
    return Allowed(least_rounds=least, most_rounds=1, abrupt=scene is Scene.RESTART)
