"""Agents of an ordinary job: the samples, guesses, sections and evidence of its ranks.

Belongs here: what an agent sees of a rank that trains, saves, evaluates, reads or hangs. Does not
belong here: how long that takes (`training`).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from holdfast.page_sample import Section
from holdfast_agent.policies.collective_steps import StepGuess
from holdfast_wire import messages as wire
from simulation.local_round import LocalRound, Slot
from simulation.ordinary.habits import Pause
from simulation.ordinary.training import OrdinaryTraining, TimedStep
from simulation.sampling import NodeSampling, evidence_of
from simulation.steered.agent import SteeredAgent, SteeredWorkers

if TYPE_CHECKING:
    from simulation.job import Job
    from simulation.ordinary.job import OrdinaryJob

_PACKAGES = "/usr/lib/python3/site-packages"
_SCRIPT = '\n  File "/job/train.py", line 9 in main\n'
_FORWARD = f'  File "{_PACKAGES}/torch/nn/linear.py", line 1 in forward{_SCRIPT}'
_BUSY: Mapping[str, Any] = {"process_state": "R", "kernel_function": "", "cpu_seconds": 1.0}
_SHOWS: Mapping[Pause | None, Mapping[str, Any]] = {
    None: {**_BUSY, "stack": _FORWARD},
    Pause.EVALUATION: {**_BUSY, "stack": _FORWARD},
    Pause.SAVE: {
        "process_state": "D",
        "kernel_function": "folio_wait_bit_common",
        "stack": f'  File "{_PACKAGES}/torch/serialization.py", line 1 in save{_SCRIPT}',
        "moved_bytes": 1 << 20,
        "wakes": 20,
    },
    Pause.BATCH: {
        "kernel_function": "do_select",
        "stack": f'  File "{_PACKAGES}/torch/utils/data/dataloader.py", line 1 in next{_SCRIPT}',
    },
    Pause.STORAGE: {
        "process_state": "D",
        "kernel_function": "folio_wait_bit_common",
        "stack": f'  File "{_PACKAGES}/torch/utils/data/dataset.py", line 1 in read{_SCRIPT}',
    },
}
"""What evidence shows of a rank, beside one that waits for its peers."""
_SECTIONS = {Pause.EVALUATION: Section.EVAL, Pause.SAVE: Section.CHECKPOINT}


class OrdinaryWorkers(SteeredWorkers):
    """Training processes that say what they do, where their script does."""

    def slot_of(self, current: LocalRound) -> Slot:
        """The slot as it is now."""
        slot = super().slot_of(current)
        job: OrdinaryJob = self.agent.job  # type: ignore[assignment]
        step = job.training.now(current.physics) if current.physics is not None else None
        doing = step.doing((current.assignment.group_rank, 0), job.time.now) if step else None
        told = _SECTIONS.get(doing) if doing is not None and job.habits.sections else None
        slot.section = int(told or Section.TRAIN)
        if current.physics is not None:
            slot.step_duration_ns = int(job.training.newest_seconds(current.physics) * 1e9)
        return slot


class OrdinarySampling(NodeSampling):
    """Samples of ranks whose steps differ in length."""

    pause = 20.0

    def _issued(
        self, current: LocalRound, rank: int, first: int, last: int
    ) -> wire.GroupCollectives:
        log, place = self._log(current), (current.assignment.group_rank, rank)
        known = [step for step in range(first, last + 1) if step in log]
        if not known:  # the ranks begin anew, and their page shows the step before
            return wire.GroupCollectives(group="0")
        micros = [
            round(self.clock.at(log[step].begun + log[step].local[place]) * 1e6) for step in known
        ]
        steps = [max(0, later - sooner) for later, sooner in zip(micros[1:], micros, strict=False)]
        return wire.GroupCollectives(
            group="0",
            first_sequence=known[0],
            signatures=(1,) * len(micros),
            issued_us=(micros[0], *steps),
            period=1,
        )

    def _log(self, current: LocalRound) -> dict[int, TimedStep]:
        training: OrdinaryTraining = self.agent.job.training  # type: ignore[assignment]
        return training.logs.get(current.physics, {}) if current.physics is not None else {}

    def on_collect(self, order: wire.CollectEvidence, number: int) -> None:
        """Collect the evidence of all ranks; it takes a second or two."""
        current = self.agent.workers.current
        if current is None or current.number != number or current.dead:
            return
        ranks = tuple(self._shown(current, rank) for rank in self.agent.workers.view(current))
        answer = wire.EvidenceCollected(command_id=order.command_id, ranks=ranks)
        self.agent.later(self.luck.uniform(1.0, 2.0), self.agent.report, answer, number)

    def _shown(self, current: LocalRound, rank: int) -> wire.RankEvidence:
        waits = evidence_of(current, rank)
        training: OrdinaryTraining = self.agent.job.training  # type: ignore[assignment]
        step = training.now(current.physics) if current.physics is not None else None
        place, now = (current.assignment.group_rank, rank), self.agent.job.time.now
        hung = current.hung is not None and current.hung.local_rank == rank
        stuck = current.physics is not None and current.physics.stuck
        if hung or stuck or step is None or step.waits(place, now):
            return waits
        tail = dataclasses.replace(waits.groups[0], sequence=current.slot.step)
        doing = step.doing(place, now)
        shows = dict(_SHOWS[doing])
        if doing is Pause.BATCH and training.habits.loader_works:
            shows["children_cpu_seconds"] = 1.0
        return dataclasses.replace(waits, groups=(tail,), **shows)


class OrdinaryAgent(SteeredAgent):
    """An agent of such a job, with or without the SDK in its ranks."""

    workers_type = OrdinaryWorkers
    dead_storage = False
    """Whatever reads on its node waits for ever."""

    def __init__(self, job: Job, rank: int, number: int, pod_uid: str) -> None:
        super().__init__(job, rank, number, pod_uid)
        self.sampling = OrdinarySampling(self, number)
        habits = self.job.habits  # type: ignore[attr-defined]
        self.sdk = habits.sdk
        self.costs = wire.SavingReport() if habits.checkpointer else None
        self.save_seconds = habits.save.seconds if habits.saves_at_stop else 0.0

    def guess(self, number: int) -> StepGuess | None:
        """Return the steps that its ranks' collectives show."""
        current = self.workers.current
        training: OrdinaryTraining = self.job.training  # type: ignore[assignment]
        if self.sdk or current is None or current.physics is None or current.dead:
            return None
        found = current.physics
        log, done = training.logs.get(found, {}), found.done
        if done - found.base < 3 or done not in log:
            return StepGuess(expected=True)
        place, last, now = (current.assignment.group_rank, 0), log[done], training.now(found)
        at = last.begun + last.local[place]
        if now is not None and now.waits(place, self.job.time.now):
            at = now.begun + now.local[place]
        seconds = training.usual_seconds(found)
        return StepGuess(group="0", period=1, steps=done - found.base, step_seconds=seconds, at=at)
