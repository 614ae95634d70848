"""Carries out orders about rounds: kill, start, stop; and reports the outcome.

Owns the newest round of this node and its phase. One thread: the event loop.
"""

from __future__ import annotations

import asyncio
import logging
import signal
import time
from collections.abc import Callable, Coroutine, Mapping
from typing import Any

from holdfast_agent.policies import round_phases
from holdfast_agent.policies.round_phases import Orders, RoundPhase, RoundTrigger, follow
from holdfast_agent.workers import torchrun_environment
from holdfast_agent.workers.context import AgentContext
from holdfast_agent.workers.exit_reports import ExitReporter, needs_stderr
from holdfast_agent.workers.log_files import RoundLogs
from holdfast_agent.workers.replica_files import RosterFile, SyncChoices
from holdfast_agent.workers.rounds import NO_LOGS, Round
from holdfast_agent.workers.shard_relay import ShardRelay
from holdfast_agent.zygote.protocol import (
    Failure,
    KillRound,
    Spawn,
    SpawnRank,
    WorkerExitedEvent,
    WorkerStarted,
)
from holdfast_wire import keys
from holdfast_wire.messages import RoundStopped, WorkerExited, WorldAssignment

log = logging.getLogger(__name__)

Report = Callable[[Any, int], None]
"""Sends a message about a round to the master: (message, round)."""


class RoundRunner:
    """Rounds of one node, at most one alive at a time."""

    def __init__(
        self, tools: AgentContext, report: Report, renew_lease: Callable[[], None]
    ) -> None:
        """Start without a round.

        renew_lease: Called before a round starts, while no process of another one lives: this
            process may have stood still, and the zygote starts nothing under a stale lease.
        """
        self._tools = tools
        self._report, self._renew_lease = report, renew_lease
        self.exits = ExitReporter(report)
        self.rosters = RosterFile(lambda: tools.logs.scratch, report)
        self.sync_choices = SyncChoices(lambda: tools.logs.scratch, report)
        self.shards = ShardRelay(lambda: tools.logs.scratch, report)
        self.phase = RoundPhase.IDLE
        self.current: Round | None = None
        """Newest round whose processes were started."""
        self.pending: Round | None = None
        """Newer one, which waits for the end of the round before and for its log files."""
        self.cold_reason = ""
        """Reason for cold starts; empty: workers are forked."""
        self.died = asyncio.Event()
        """Set while no process of a round lives here."""
        self.died.set()
        self.changed = asyncio.Event()
        """Set when a round has begun, so that pollers look more often."""
        self._tasks: set[asyncio.Task[None]] = set()
        self._held = False
        """There is no zygote that could start a round."""

    @property
    def live(self) -> Round | None:
        """Round whose processes run; None: there is none, or it waits to be started."""
        return None if self.current is None or self.current.dead else self.current

    def running(self, number: int) -> Round | None:
        """Return round `number` if its processes run here."""
        live = self.live
        return live if live is not None and live.number == number else None

    @property
    def alive(self) -> bool:
        """True: processes of a round run, or are being started."""
        return self.pending is not None or self.live is not None

    @property
    def ending_round(self) -> int:
        """Number of the newest round that was started if a rank of it has ended; else 0."""
        current = self.current
        return current.number if current is not None and (current.dead or current.exits) else 0

    # --- orders -------------------------------------------------------------------------------

    def start(self, number: int, assignment: WorldAssignment) -> None:
        """Kill the running round, and start round `number` as soon as it is dead."""
        settings, inherited = self._tools.settings, self._tools.inherited
        common = {
            # An agent inside a rank must not pass on the outer agent's variables.
            keys.ENV_ARENA: self._tools.arenas.path if assignment.keeps_checkpoints else "",
            keys.ENV_SCHEDULE: torchrun_environment.schedule(assignment),
            **torchrun_environment.checkpoint(assignment),
            **self.rosters.begin(number, assignment),
            **self.sync_choices.begin(number),
            **self.shards.begin(),
        }
        envs = {
            rank: torchrun_environment.environment(settings, assignment, rank, inherited) | common
            for rank in range(assignment.local_world_size)
        }
        now = time.monotonic()
        pending = Round(number=number, assignment=assignment, ordered_at=now, envs=envs)
        self.pending = pending
        self._kill_current()
        self._spawn_task(self._prepare(pending))

    def kill(self, reason: str) -> None:
        """SIGKILL all processes; `RoundStopped` is reported when they are dead."""
        self._give_up_pending()
        if self.live is not None:
            log.warning("killing round %d: %s", self.live.number, reason)
            self._kill_current()

    def stop(self, grace_seconds: float, reason: str, sig: int = signal.SIGTERM) -> None:
        """Signal the workers, and SIGKILL the rest after the grace; 0: SIGKILL at once."""
        self._give_up_pending()
        current = self.live
        if current is None:
            return
        log.info("stopping round %d: %s", current.number, reason)
        if grace_seconds <= 0:
            self._kill_current()
            return
        current.orders |= Orders.STOPPED
        self._move(RoundTrigger.STOP)
        self._tools.process.send(KillRound(current.number, int(sig), grace_seconds))

    def stuck(self, now: float) -> str:
        """Return the reason why this node cannot go on; empty: it can (`now`: monotonic, s)."""
        return "" if self.current is None else self.current.stuck(now)

    async def close(self) -> None:
        """Wait for the work in the background (evidence, tails)."""
        while self._tasks:
            await asyncio.wait(self._tasks, timeout=1.0)
        await self.exits.close()
        self.shards.close()

    # --- events of the zygote -----------------------------------------------------------------

    def on_started(self, event: WorkerStarted) -> None:
        """Note that a worker process exists."""
        current = self.current
        if current is None or event.round != current.number:
            return
        current.pids[event.local_rank] = event.pid
        current.started_ns[event.local_rank] = event.mono_ns
        current.cold = current.cold or not event.forked
        if current.all_started and not current.started_reported:
            current.started_reported = True
            self._report(current.started(self.cold_reason), current.number)

    def on_exited(self, event: WorkerExitedEvent) -> None:
        """Note that a worker process is gone."""
        current = self.current
        if current is None or event.round != current.number:
            return
        code = event.exit_code
        if event.local_rank not in current.dying:
            self._take_exit(current, event.local_rank, code, event.mono_ns)
            return
        current.dying.remove(event.local_rank)
        if code != current.exits[event.local_rank]:
            told = current.exits[event.local_rank]
            log.error("rank %d ended with %d and not, as told, %d", event.local_rank, code, told)
            current.exits[event.local_rank] = code

    def on_dying(self, local_rank: int, code: int) -> None:
        """Note that a worker is being taken down and will end with this code.

        Only its report comes earlier. The round lives until the zygote reports it dead.
        """
        current = self.current
        if current is not None and local_rank not in current.exits:
            current.dying.add(local_rank)
            self._take_exit(current, local_rank, code, time.monotonic_ns())

    def _take_exit(
        self, current: Round, local_rank: int, code: int, mono_ns: int, cause: str = ""
    ) -> None:
        current.exits[local_rank] = code
        self.shards.forward(current.number)  # what it had committed counts
        self.exits.note(current, self._tools.page, local_rank, mono_ns, cause)
        if current.all_exited and self.phase in (RoundPhase.STARTING, RoundPhase.RUNNING):
            self._move(RoundTrigger.ALL_EXITED)
        self.changed.set()

    def on_dead(self, number: int) -> None:
        """Note that no process of round `number` lives any more."""
        current = self.running(number)
        if current is None:
            return
        current.dead = True
        self._move(RoundTrigger.DEAD)
        self.died.set()
        self._spawn_task(asyncio.to_thread(current.logs.stop))
        if round_phases.tells_stopped(current.orders, next_waits=self.pending is not None):
            codes = tuple(code for _, code in sorted(current.exits.items()))
            expired = Orders.LEASE_EXPIRED in current.orders
            stopped = RoundStopped(lease_expired=expired, exit_codes=codes)
            self._report(stopped, number)
        self._try_spawn()

    def stood_still(self, seconds: float) -> bool:
        """Kill the workers: this process stood still for longer than its lease.

        Returns False if there are none.
        """
        current = self.live
        if current is not None and Orders.LEASE_EXPIRED not in current.orders:
            log.error("this agent stood still for %.1f s: its workers are killed", seconds)
            current.orders |= Orders.LEASE_EXPIRED
            self._kill_current()
        return current is not None

    def hold(self) -> None:
        """Start no round until `release`: there is no zygote."""
        self._held = True

    def release(self) -> None:
        """Start a round that waits for a zygote: one is ready."""
        self._held = False
        self._try_spawn()

    def zygote_lost(self, codes: Mapping[int, int], cause: str) -> None:
        """Note that the zygote is gone, and that all of its descendants are gone and reaped.

        codes: Exit codes of its workers by pid, as far as this process has seen them.
        cause: Reason for workers that got SIGKILL because of it, or never ran.
        """
        current = self.live
        if current is None:
            return
        current.dying.clear()
        for rank in sorted(set(range(current.size)) - current.exits.keys()):
            code = codes.get(current.pids.get(rank, 0), -signal.SIGKILL)
            killed = cause if code == -signal.SIGKILL else ""
            self._take_exit(current, rank, code, time.monotonic_ns(), killed)
        self.on_dead(current.number)

    def on_store_lost(self, store_id: str, reason: str) -> None:
        """Note that a store of this node has ended: a round on it that waits cannot start.

        Its ranks would try to connect for many minutes. The master ends a round that has started.
        """
        pending = self.pending
        if pending is not None and store_id and pending.assignment.store_id == store_id:
            self._drop_pending()
            self._report_unstartable(pending, "StoreLost", f"its store has ended: {reason}")

    def on_failure(self, event: Failure) -> None:
        """Note that the zygote could not carry out a command."""
        log.error("zygote: %s", event.text)
        current = self.current
        if current is not None and event.round == current.number:
            self._report_unstartable(current, "SpawnFailed", event.text)

    # --- inside -------------------------------------------------------------------------------

    def _move(self, happening: RoundTrigger) -> None:
        self.phase = follow(self.phase, happening)

    def first_step(self) -> None:
        """Note that all local ranks have completed a step."""
        self._move(RoundTrigger.FIRST_STEP)

    def _kill_current(self) -> None:
        current = self.live
        if current is None:
            return
        if Orders.KILLED not in current.orders:
            current.orders |= Orders.KILLED
            current.killed_at = time.monotonic()
        self._move(RoundTrigger.KILL)
        self._tools.process.send(KillRound(current.number))

    def _give_up_pending(self) -> None:
        """Drop an assigned round that will not be started: no process of it lives."""
        pending = self.pending
        self._drop_pending()
        if pending is not None:
            self._report(RoundStopped(), pending.number)

    def _drop_pending(self) -> None:
        pending, self.pending = self.pending, None
        if pending is not None and pending.logs is not NO_LOGS:
            self._spawn_task(asyncio.to_thread(pending.logs.stop))

    async def _prepare(self, pending: Round) -> None:
        """Make the log files while the old processes die, then start."""
        try:
            logs = await asyncio.to_thread(self._open_round, pending)
        except OSError as error:
            if self.pending is pending:
                self.pending = None
                self._report_unstartable(pending, type(error).__name__, str(error))
            return
        if self.pending is not pending:
            await asyncio.to_thread(logs.stop)
            return
        pending.logs = logs
        self._try_spawn()

    def _open_round(self, pending: Round) -> RoundLogs:
        """Make the log files, and note how it stands with the memory. Blocks."""
        self.exits.memory.begin(pending.number)
        return self._tools.logs.open_round(
            pending.envs, pending.number, capture_stderr=needs_stderr(self.exits.rules)
        )

    def _try_spawn(self) -> None:
        current = self.pending
        if current is None or current.logs is NO_LOGS or self.phase is not RoundPhase.IDLE:
            return
        if self._held:
            log.info("round %d waits for a zygote", current.number)
            return
        self.current, self.pending = current, None
        current.spawned_at = time.monotonic()
        self._move(RoundTrigger.SPAWN)
        self.died.clear()
        for rank in current.envs:
            self._tools.page.reset(rank, current.number)
        ranks = tuple(self._rank(current, rank, env) for rank, env in current.envs.items())
        self._renew_lease()
        self._tools.process.send(Spawn(round=current.number, ranks=ranks))
        self.changed.set()

    def _rank(self, current: Round, rank: int, env: Mapping[str, str]) -> SpawnRank:
        launch = self._tools.settings.launch
        mode, argv = torchrun_environment.arguments(launch, rank)
        files = current.logs.files[rank]
        return SpawnRank(
            local_rank=rank,
            slot=rank,
            argv=argv,
            mode=mode,
            env=env,
            stdout=str(files.stdout) if files.stdout else None,
            stderr=str(files.stderr) if files.stderr else None,
            server=str(files.server) if launch.worker_server else None,
            numa=launch.numa,
        )

    def _report_unstartable(self, wanted: Round, kind: str, text: str) -> None:
        """Report that a round could not be started here: to the master that is a failed worker."""
        log.error("round %d could not be started: %s", wanted.number, text)
        message = WorkerExited(
            rank=wanted.assignment.base_rank, exit_code=1, error_type=kind, error_message=text
        )
        self._report(message, wanted.number)

    def _spawn_task(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
