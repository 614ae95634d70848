"""Samples of one node's ranks, the node's Unix clock, and the evidence of ranks that hang.

Belongs here: what `holdfast_agent.health` measures on a real node, taken from the physics. Does not
belong here: the estimate of the clock's offset (`holdfast_agent.policies.schedules`), verdicts
(the master), what goes wrong (`faults`).

A step has one collective. A rank issues it when its own part of the step is done; all leave it
together when the slowest has issued it.
"""

from __future__ import annotations

import collections
import dataclasses
import random
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from holdfast_agent.policies import schedules
from holdfast_agent.policies.schedules import ClockAnswer, ClockOffset
from holdfast_master.policies.hang_response import HangKind
from holdfast_wire import messages as wire
from simulation.local_round import Hung, LocalRound
from simulation.master import UNIX_START
from simulation.training import PACE

if TYPE_CHECKING:
    from simulation.agent import Agent

SAMPLE_SECONDS = 5.0
"""Between two samples of the ranks' collectives."""
MOST_STEPS = 256
"""Newest steps of a sample: holdfast_agent.health.sampler.MOST_ENTRIES."""
_NOISES = 64
_LEVELS = (0.8, 0.98)
"""Share of a step that a rank works by itself, least and greatest: ranks are unequal by design."""
_NOISE = 0.02
"""Of that share."""
_GROUP = "0"
_DRIFT = 0.9 * schedules.DRIFT
_OFFSET = 2.0
"""Farthest that a node's clock is off at the start, s."""


class NodeSampling:
    """One agent's samples."""

    pause = SAMPLE_SECONDS
    """Between two of them."""

    def __init__(self, agent: Agent, number: int) -> None:
        """Sample from now on, if the scenario has it so."""
        self.agent = agent
        scenario = agent.job.scenario
        self.luck = random.Random(f"{scenario.seed}/{agent.rank}/{number}/samples")
        """Luck of its own, so that what a seed has found stays what it finds."""
        self.clock = NodeClock(random.Random(f"{scenario.seed}/{agent.rank}/clock"))
        self._noise: dict[int, tuple[float, ...]] = {}
        """Share of a usual step that a rank works, by local rank and by step."""
        self._sent: tuple[LocalRound | None, int] = (None, 0)
        """A round, and its newest step that the master has."""
        self._ahead: float | None = None
        self._probed = 0
        self._probes: dict[int, float] = {}
        self._answers: collections.deque[ClockAnswer] = collections.deque(maxlen=schedules.KEPT)
        if scenario.samples:
            agent.later(self.luck.uniform(0.0, SAMPLE_SECONDS), self._sample)

    @property
    def unix(self) -> float:
        """The node's Unix clock now."""
        return self.clock.at(self.agent.job.time.now)

    def on_clock(self, reply: wire.ClockReply) -> None:
        """Take the answer to a clock probe."""
        sent = self._probes.pop(reply.probe_id, None)
        if sent is not None:
            self._answers.append(ClockAnswer(sent, reply.master_unix, self.unix))

    def _sample(self) -> None:
        """Send when the ranks issued the collectives of the steps that the master does not have.

        A message goes also without any: the number of messages is part of a seed's course.
        """
        agent = self.agent
        current = agent.workers.current
        if agent.connected and agent.ending is None and current is not None and not current.dead:
            self._watch_clock()
            offset = schedules.estimate(tuple(self._answers), self.unix)
            self._probe()
            stepped = agent.workers.slot_of(current).step > 0
            if stepped:
                agent.report(self._message(current, offset), current.number)
        agent.later(self.pause, self._sample)

    def forget_clock(self) -> None:
        """Forget what is known of the offset: another master may have another clock."""
        self._answers.clear()
        self._probes = {}

    def _watch_clock(self) -> None:
        now = self.clock.ahead(self.agent.job.time.now)
        before, self._ahead = self._ahead, now
        if before is not None and schedules.was_set(before, now):
            self.forget_clock()

    def _probe(self) -> None:
        self._probed += 1
        number = self._probed
        self._probes = {number: self.unix}
        self.agent.report(wire.ClockProbe(probe_id=number), 0)

    def _message(self, current: LocalRound, offset: ClockOffset | None) -> wire.CollectiveSamples:
        newest = current.slot.step
        before = self._sent[1] if self._sent[0] is current else 0
        physics = current.physics
        first = max(before, newest - MOST_STEPS, physics.base if physics is not None else 0) + 1
        self._sent = (current, newest)
        if offset is None or newest < first:
            return wire.CollectiveSamples()
        ranks = [
            wire.RankCollectives(
                local_rank=rank, groups=(self._issued(current, rank, first, newest),)
            )
            for rank in range(self.agent.local)
        ]
        return wire.CollectiveSamples(
            ranks=tuple(ranks),
            clock_offset_seconds=offset.seconds,
            clock_error_seconds=offset.error,
        )

    def _issued(
        self, current: LocalRound, rank: int, first: int, last: int
    ) -> wire.GroupCollectives:
        """Return when a rank issued its collectives of these steps, by the node's clock."""
        assert current.physics is not None
        place, noise, clock = current.assignment.group_rank, self._shares(rank), self.clock
        micros = [
            round(
                clock.at(begun + PACE * (noise[step % _NOISES] + pace.slow.get(place, 0.0))) * 1e6
            )
            for step, (begun, pace) in enumerate(current.physics.begun(first, last), first)
        ]
        steps = [max(0, later - sooner) for later, sooner in zip(micros[1:], micros, strict=False)]
        return wire.GroupCollectives(
            group=_GROUP,
            first_sequence=first,
            signatures=(1,) * len(micros),
            issued_us=(micros[0], *steps),
            period=1,
        )

    def _shares(self, rank: int) -> tuple[float, ...]:
        found = self._noise.get(rank)
        if found is None:
            agent = self.agent
            luck = random.Random(f"{agent.job.scenario.seed}/{agent.rank}/{rank}/noise")
            level = luck.uniform(*_LEVELS)
            found = tuple(level * luck.uniform(1 - _NOISE, 1 + _NOISE) for _ in range(_NOISES))
            self._noise[rank] = found
        return found

    # --------------------------------------------------------------------------------- evidence

    def hang(self, kind: HangKind, local_rank: int) -> Hung | None:
        """Let a rank of the running round hang; None: there is none."""
        current = self.agent.workers.current
        if current is None or current.dead or current.physics is None or current.hung is not None:
            return None
        current.hung = found = Hung(local_rank, kind)
        place = current.assignment.group_rank
        self.agent.job.training.hang(current.physics, place, stuck=True)
        return found

    def release(self, found: Hung) -> None:
        """The rank goes on, if its process still lives."""
        current = self.agent.workers.current
        if current is not None and current.hung is found and current.physics is not None:
            current.hung = None
            place = current.assignment.group_rank
            self.agent.job.training.hang(current.physics, place, stuck=False)

    def on_collect(self, order: wire.CollectEvidence, number: int) -> None:
        """Collect the evidence of all ranks; it takes a second or two."""
        current = self.agent.workers.current
        if current is None or current.number != number or current.dead:
            return
        ranks = tuple(evidence_of(current, rank) for rank in self.agent.workers.view(current))
        answer = wire.EvidenceCollected(command_id=order.command_id, ranks=ranks)
        self.agent.later(self.luck.uniform(1.0, 2.0), self.agent.report, answer, number)


@dataclasses.dataclass(slots=True)
class NodeClock:
    """A node's Unix clock: it is wrong, drifts, and is set now and then."""

    luck: random.Random
    drift: float = 0.0
    """Seconds that it goes wrong in a second, since the start."""
    set_at: list[tuple[float, float]] = dataclasses.field(default_factory=list)
    """When it was set, and how far it was off from then on but for the drift, s."""

    def __post_init__(self) -> None:
        """Draw how wrong it is."""
        self.drift = self.luck.uniform(-1.0, 1.0) * _DRIFT
        self.set_at.append((0.0, self.luck.uniform(-_OFFSET, _OFFSET)))

    def at(self, now: float) -> float:
        """Return what it shows at this moment."""
        offset = self.set_at[-1][1]
        if len(self.set_at) > 1:
            offset = next(off for since, off in reversed(self.set_at) if since <= now)
        return UNIX_START + now * (1 + self.drift) + offset

    def ahead(self, now: float) -> float:
        """Return how far it is ahead of a clock that nobody sets."""
        return self.at(now) - now * (1 + self.drift)

    def set(self, now: float, by: float) -> None:
        """Set it forward, or back."""
        self.set_at.append((now, self.set_at[-1][1] + by))


# ------------------------------------------------------------------------------- what a rank shows

_COLLECTIVE = "gloo:all_reduce"
_TORCH = "/usr/lib/python3/site-packages/torch"
_PEERS = f'  File "{_TORCH}/distributed/distributed_c10d.py", line 1 in all_reduce'
_SHOWS: Mapping[HangKind, Mapping[str, Any]] = {
    HangKind.PROCESS_GONE: {"process_state": "Z", "server_answered": False, "stack": ""},
    HangKind.UNINTERRUPTIBLE: {"process_state": "D", "kernel_function": "rpc_wait_bit_killable"},
    HangKind.STOPPED: {"process_state": "T", "server_answered": False, "stack": ""},
    HangKind.NATIVE_GIL: {"gil_free": False, "stack": ""},
    HangKind.STORAGE: {"stack": f'  File "{_TORCH}/serialization.py", line 1 in save'},
    HangKind.DATA_LOADER: {"stack": f'  File "{_TORCH}/utils/data/dataloader.py", line 1 in next'},
    HangKind.COMPILATION: {"stack": f'  File "{_TORCH}/_dynamo/convert_frame.py", line 1 in go'},
    HangKind.LOCK: {"stack": '  File "/usr/lib/python3.11/threading.py", line 1 in wait'},
    HangKind.PYTHON_LOOP: {"process_state": "R", "stack": '  File "/app/train.py", line 1 in f'},
    HangKind.ABSENT: {
        "kernel_function": "hrtimer_nanosleep",
        "stack": '  File "/app/train.py", line 1 in f',
    },
    HangKind.MISMATCHED_COLLECTIVE: {},
    HangKind.NETWORK: {},
}
HANGS = tuple(_SHOWS)
"""Kinds of hangs whose evidence is known here."""
_AHEAD = frozenset({HangKind.MISMATCHED_COLLECTIVE, HangKind.NETWORK})
"""The rank has issued what the others wait in, or something else in its place."""


def evidence_of(current: LocalRound, rank: int) -> wire.RankEvidence:
    """Return what is seen of a rank: it hangs, or it waits for the others."""
    hung = current.hung if current.hung is not None and current.hung.local_rank == rank else None
    stuck = current.physics is not None and bool(current.physics.stuck or current.physics.paused)
    ahead = stuck and (hung is None or hung.kind in _AHEAD)
    mismatched = hung is not None and hung.kind is HangKind.MISMATCHED_COLLECTIVE
    tail = wire.GroupTail(
        group=_GROUP,
        ranks=tuple(range(current.assignment.world_size)),
        sequence=current.slot.step + ahead,
        operation="gloo:broadcast" if mismatched else _COLLECTIVE,
    )
    shown: dict[str, Any] = {
        "process_state": "S",
        "kernel_function": "futex_do_wait",
        "server_answered": True,
        "gil_free": True,
        "stack": _PEERS,
    }
    shown |= _SHOWS[hung.kind] if hung is not None else {}
    answers = shown["server_answered"]
    return wire.RankEvidence(
        local_rank=rank,
        rank=current.assignment.base_rank + rank,
        pid=1000 + rank,
        observed_seconds=1.0,
        groups=(tail,) if answers else (),
        **shown,
    )
