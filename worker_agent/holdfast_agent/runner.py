"""Carries out orders about rounds: kill, start, stop; and tells what became of them.

Owns the newest round of this node and its phase. Talks to the zygote and the page; what is ordered
and why is decided elsewhere, where reports go is the caller's business. One thread: the event loop.
"""

from __future__ import annotations

import asyncio
import logging
import signal
import time
from collections.abc import Callable, Coroutine, Mapping
from typing import Any

from holdfast_agent import contract, zygote
from holdfast_agent.decide import exits
from holdfast_agent.decide.phases import Happening, RoundPhase, follow
from holdfast_agent.exits import ExitReporter
from holdfast_agent.rounds import Pending, Round
from holdfast_agent.tools import Tools
from holdfast_wire import keys
from holdfast_wire.messages import (
    RoundStopped,
    WorkerExited,
    WorldAssignment,
)

log = logging.getLogger(__name__)

Report = Callable[[Any, int], None]
"""Sends a message about a round to the master: (message, round)."""


class RoundRunner:
    """The rounds of one node, at most one alive at a time."""

    def __init__(self, tools: Tools, report: Report) -> None:
        """Start with nothing; `report` sends to the master."""
        self._tools = tools
        self._report = report
        self.exits = ExitReporter(report)
        self.phase = RoundPhase.IDLE
        self.current: Round | None = None
        self.pending: Pending | None = None
        self.cold_reason = ""
        """Why workers are started cold; empty: they are forked."""
        self.died = asyncio.Event()
        """Set while nothing lives here."""
        self.died.set()
        self.changed = asyncio.Event()
        """Set when a round has begun, so that whoever polls looks more often."""
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def alive(self) -> bool:
        """Processes of a round run, or are being started."""
        return self.pending is not None or (self.current is not None and not self.current.dead)

    # --- orders -------------------------------------------------------------------------------

    def start(self, number: int, assignment: WorldAssignment) -> None:
        """Kill what runs and start round `number` as soon as that is dead."""
        sizes = range(assignment.local_world_size)
        inherited = self._tools.inherited
        envs = {
            rank: {
                **contract.environment(self._tools.settings, assignment, rank, inherited),
                # An agent inside a rank must not pass on its outer's.
                keys.ENV_ARENA: self._tools.arenas.path if assignment.keeps_checkpoints else "",
                keys.ENV_SCHEDULE: contract.schedule(assignment),
                keys.ENV_KEEP: contract.keep(assignment),
            }
            for rank in sizes
        }
        pending = Pending(number, assignment, time.monotonic(), envs)
        self.pending = pending
        self._kill_current()
        self._spawn_task(self._prepare(pending))

    def kill(self, reason: str) -> None:
        """SIGKILL everything; `RoundStopped` is reported when it is dead."""
        self._give_up_pending()
        if self.current is not None and not self.current.dead:
            log.warning("killing round %d: %s", self.current.number, reason)
            self._kill_current()

    def stop(self, grace_seconds: float, reason: str, sig: int = signal.SIGTERM) -> None:
        """Signal the workers, SIGKILL what is left after the grace; 0: SIGKILL at once."""
        self._give_up_pending()
        current = self.current
        if current is None or current.dead:
            return
        log.info("stopping round %d: %s", current.number, reason)
        if grace_seconds <= 0:
            self._kill_current()
            return
        current.stop_ordered = True
        self._move(Happening.STOP)
        self._tools.control.kill_round(current.number, sig, grace_seconds)

    def capture_stderr(self, patterns: tuple[str, ...]) -> None:
        """Look for `patterns` in standard error from the next round on."""
        self.exits.patterns = patterns

    def stuck(self, now: float) -> str:
        """Return why this node cannot go on, empty where it can (`now`: monotonic, s)."""
        return "" if self.current is None else self.current.stuck(now)

    async def close(self) -> None:
        """Wait for what was begun in the background (evidence, tails)."""
        while self._tasks:
            await asyncio.wait(self._tasks, timeout=1.0)
        await self.exits.close()

    # --- what the zygote says -----------------------------------------------------------------

    def on_started(self, event: zygote.WorkerStarted) -> None:
        """A worker process exists."""
        current = self.current
        if current is None or event.round != current.number:
            return
        current.pids[event.local_rank] = event.pid
        current.started_ns[event.local_rank] = event.mono_ns
        current.cold = current.cold or not event.forked
        if current.all_started and not current.started_reported:
            current.started_reported = True
            self._report(current.started(self.cold_reason), current.number)

    def on_exited(self, event: zygote.WorkerExited) -> None:
        """A worker process is gone."""
        current = self.current
        if current is None or event.round != current.number:
            return
        code = -event.signal if event.signal is not None else event.exit_code or 0
        if event.local_rank not in current.dying:
            self._take_exit(current, event.local_rank, code, event.mono_ns)
            return
        current.dying.remove(event.local_rank)
        if code != current.exits[event.local_rank]:
            told = current.exits[event.local_rank]
            log.error("rank %d ended with %d and not, as told, %d", event.local_rank, code, told)
            current.exits[event.local_rank] = code

    def on_dying(self, local_rank: int, code: int) -> None:
        """A worker is being taken down and will have ended with this code: as good as gone.

        Only its report is earlier. The round lives until the zygote says that it is dead.
        """
        current = self.current
        if current is not None and local_rank not in current.exits:
            current.dying.add(local_rank)
            self._take_exit(current, local_rank, code, time.monotonic_ns())

    def _take_exit(self, current: Round, local_rank: int, code: int, mono_ns: int) -> None:
        current.exits[local_rank] = code
        self.exits.note(current, self._tools.page, local_rank, mono_ns)
        if current.all_exited and self.phase in (RoundPhase.STARTING, RoundPhase.RUNNING):
            self._move(Happening.ALL_EXITED)
        self.changed.set()

    def on_dead(self, number: int) -> None:
        """Nothing of round `number` lives any more."""
        current = self.current
        if current is None or number != current.number or current.dead:
            return
        current.dead = True
        self._move(Happening.DEAD)
        self.died.set()
        self._spawn_task(asyncio.to_thread(current.logs.stop))
        if exits.tells_stopped(current.orders, next_waits=self.pending is not None):
            self._report_stopped(current)
        self._try_spawn()

    def stood_still(self, seconds: float) -> None:
        """This process stood still for longer than its lease: nothing of its workers may live."""
        current = self.current
        if current is not None and not current.dead and not current.lease_expired:
            log.error("this agent stood still for %.1f s: its workers are killed", seconds)
            current.lease_expired = True
            self._kill_current()

    def zygote_lost(self) -> None:
        """The zygote is gone, and all of its descendants have been killed."""
        self._drop_pending()
        if self.current is not None:
            self.on_dead(self.current.number)

    def on_failure(self, event: zygote.Failure) -> None:
        """The zygote could not do what it was told."""
        log.error("zygote: %s", event.text)
        if event.round is not None:
            self._report_unstartable(event.round, "SpawnFailed", event.text)

    # --- inside -------------------------------------------------------------------------------

    def _move(self, happening: Happening) -> None:
        self.phase = follow(self.phase, happening)

    def first_step(self) -> None:
        """All local ranks have completed a step."""
        self._move(Happening.FIRST_STEP)

    def _kill_current(self) -> None:
        current = self.current
        if current is None or current.dead:
            return
        if current.killed_at is None:
            current.killed_at = time.monotonic()
        self._move(Happening.KILL)
        self._tools.control.kill_round(current.number)

    def _give_up_pending(self) -> None:
        """An assigned round is not started any more: nothing of it lives."""
        pending = self.pending
        self._drop_pending()
        if pending is not None:
            self._report(RoundStopped(), pending.number)

    def _drop_pending(self) -> None:
        pending, self.pending = self.pending, None
        if pending is not None and pending.logs is not None:
            self._spawn_task(asyncio.to_thread(pending.logs.stop))

    async def _prepare(self, pending: Pending) -> None:
        """Make the log files while the old processes die, then start."""
        try:
            logs = await asyncio.to_thread(
                self._tools.logs.open_round,
                pending.envs,
                pending.number,
                capture_stderr=bool(self.exits.patterns),
            )
        except OSError as error:
            if self.pending is pending:
                self.pending = None
                self._report_unstartable(pending.number, type(error).__name__, str(error))
            return
        if self.pending is not pending:
            await asyncio.to_thread(logs.stop)
            return
        pending.logs = logs
        self._try_spawn()

    def _try_spawn(self) -> None:
        pending = self.pending
        if pending is None or pending.logs is None or self.phase is not RoundPhase.IDLE:
            return
        self.pending = None
        current = Round(
            number=pending.number,
            assignment=pending.assignment,
            ordered_at=pending.ordered_at,
            logs=pending.logs,
            spawned_at=(now := time.monotonic()),
            killed_seconds=now - pending.ordered_at,
        )
        self.current = current
        self._move(Happening.SPAWN)
        self.died.clear()
        for rank in pending.envs:
            self._tools.page.reset(rank, pending.number)
        ranks = tuple(self._rank(current, rank, env) for rank, env in pending.envs.items())
        self._tools.control.spawn(zygote.SpawnRound(round=pending.number, ranks=ranks))
        self.changed.set()

    def _rank(self, current: Round, rank: int, env: Mapping[str, str]) -> zygote.SpawnRank:
        launch = self._tools.settings.launch
        mode, argv = contract.arguments(launch, rank)
        files = current.logs.files[rank]
        return zygote.SpawnRank(
            local_rank=rank,
            slot=rank,
            argv=argv,
            mode=mode,
            env=env,
            stdout=str(files.stdout) if files.stdout else None,
            stderr=str(files.stderr) if files.stderr else None,
            stacks=str(files.stacks),
            numa=launch.numa,
        )

    def _report_stopped(self, current: Round) -> None:
        codes = tuple(code for _, code in sorted(current.exits.items()))
        self._report(
            RoundStopped(lease_expired=current.lease_expired, exit_codes=codes), current.number
        )

    def _report_unstartable(self, number: int, kind: str, text: str) -> None:
        """A round could not be started here: to the master that is a failed worker."""
        log.error("round %d could not be started: %s", number, text)
        self._report(WorkerExited(exit_code=1, error_type=kind, error_message=text), number)

    def _spawn_task(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
