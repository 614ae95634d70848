"""Starting the workers of a round: forked where that is safe, else as fresh interpreters.

Knows why forking is off; which processes live is `rounds`, what a worker then does is `child`.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable

from holdfast.page import Page
from holdfast_agent.zygote import preload, threads, variables
from holdfast_agent.zygote.child import Worker, become, worker_environment
from holdfast_agent.zygote.forking import fork
from holdfast_agent.zygote.messages import (
    Event,
    Failure,
    ForkDisabled,
    Mode,
    SpawnRank,
    SpawnRound,
    WorkerStarted,
)
from holdfast_agent.zygote.numa import NumaError, cpu_sets
from holdfast_agent.zygote.rounds import LiveRound
from holdfast_agent.zygote.settings import ZygoteSettings


class Spawner:
    """Starts workers from what the zygote has imported."""

    def __init__(
        self,
        page: Page,
        settings: ZygoteSettings,
        send: Callable[[Event], None],
        log: Callable[[str], None],
    ) -> None:
        """`send` takes events for the agent, `log` lines for a person."""
        self._page, self._settings, self._send, self._log = page, settings, send, log
        self._pid = os.getpid()
        self._user_environment = dict(os.environ)
        for name, value in settings.user_variables.items():
            if value is None:
                self._user_environment.pop(name, None)
            else:
                self._user_environment[name] = value
        self._openblas: Callable[[int], object] | None = None
        self._cpus: dict[tuple[str, int], frozenset[int]] = {}
        self.no_fork = "not prepared"
        """Why workers are not forked; empty when they are."""

    def prepare(self, known_descriptors: list[int], problem: str) -> None:
        """Import the preload list and judge whether forking is safe.

        problem: a reason known before that it is not; then nothing is imported.
        """
        if not self._settings.fork:
            problem = "switched off by the settings"
        if not problem:
            for line in preload.import_all(self._settings.preload):
                self._log(line)
            self._openblas = threads.openblas_setter()
            problem = preload.why_not_forkable(known_descriptors)
        preload.settle()
        self.no_fork = problem

    def disable_fork(self, reason: str) -> None:
        """Start fresh interpreters from now on."""
        if not self.no_fork:
            self.no_fork = reason
            self._log(f"forking ends: {reason}")
            self._send(ForkDisabled(reason))

    def spawn(self, wanted: SpawnRound, live: LiveRound) -> bool:
        """Start all workers into `live`; on a failure report it and return False."""
        try:
            cpus = {rank.local_rank: self._cpus_of(rank, wanted) for rank in wanted.ranks}
            for rank in wanted.ranks:
                self._start(rank, live, cpus[rank.local_rank])
        except (OSError, NumaError) as error:
            self._send(Failure(f"spawn of round {wanted.round}: {error}", wanted.round))
            return False
        return True

    def _start(self, rank: SpawnRank, live: LiveRound, cpus: frozenset[int] | None) -> None:
        worker = Worker(
            round=live.number,
            rank=rank,
            page=self._page,
            environment=worker_environment(
                self._user_environment,
                rank,
                live.number,
                self._page.fd,
                self._settings.local_world_size,
            ),
            zygote_pid=self._pid,
            forked=self._may_fork(rank),
            stack_signal=self._settings.stack_signal,
            cpus=cpus,
            openblas=self._openblas,
        )
        pid = fork(lambda: become(worker))
        now = time.monotonic_ns()
        live.workers[pid] = rank
        self._send(WorkerStarted(live.number, rank.local_rank, pid, worker.forked, now))

    def _may_fork(self, rank: SpawnRank) -> bool:
        if self.no_fork or rank.mode is Mode.BINARY:
            return False
        differing = variables.differing(rank.env, os.environ)
        if differing:
            names = ", ".join(differing)
            self._log(f"rank {rank.local_rank} is not forked: {names} differs from the agent's")
        return not differing

    def _cpus_of(self, rank: SpawnRank, wanted: SpawnRound) -> frozenset[int] | None:
        """Return the CPUs of a rank; asked of torch once for all ranks of the mode."""
        if rank.numa is None:
            return None
        key = rank.numa, rank.local_rank
        if key not in self._cpus:
            ranks = [other.local_rank for other in wanted.ranks if other.numa == rank.numa]
            for local_rank, cpus in cpu_sets(rank.numa, ranks).items():
                self._cpus[rank.numa, local_rank] = cpus
        return self._cpus[key]
