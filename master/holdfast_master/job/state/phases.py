"""The job's state machine: a table of phases, and of the triggers from one to the next."""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable

from holdfast_wire.messages import JobPhase


class Trigger(enum.Enum):
    """Transitions from one phase to the next; the value is the sentence of the diagram."""

    DECIDED = "a world is decided"
    HELD = "no world can be formed now"
    ASSIGNED = "every member was told its place"
    STEPPED = "all ranks completed a step"
    BARRIER_SET = "a barrier is set"
    SUSPENDED = "the spec suspends the job"
    RESUMED = "the spec resumes the job"
    END_DECIDED = "the end is decided"
    ENDED_WELL = "all nodes are told, the policy is met"
    ENDED_BADLY = "all nodes are told, the policy is not met"


class InvalidPhaseTransitionError(Exception):
    """The state machine has no such step: a fault of the master itself."""

    def __init__(self, phase: str, trigger: str, story: Iterable[str] = ()) -> None:
        self.story = tuple(story)
        lines = "".join(f"\n  {line}" for line in self.story)
        super().__init__(
            f"{trigger} is impossible in phase {phase}; before it:{lines or ' nothing'}"
        )


_P, _T = JobPhase, Trigger

LIVING = (_P.WAITING, _P.FORMING, _P.STARTING, _P.TRAINING, _P.SAVING)
"""Phases in which the job runs or wants to."""

ENDED = frozenset({_P.SUCCEEDED, _P.FAILED})
"""Phases that nothing leaves."""
OVER = ENDED | {_P.STOPPING}
"""Phases in which the end is decided."""
RUNNING = frozenset({_P.STARTING, _P.TRAINING})
"""Phases in which the ranks of the newest world run as they like."""
BEGINNING = frozenset({_P.FORMING, _P.STARTING})
"""Phases of the newest world in which other replicas may train."""

TABLE: dict[tuple[JobPhase, Trigger], JobPhase] = {
    **{(phase, _T.DECIDED): _P.FORMING for phase in LIVING},
    **{(phase, _T.HELD): _P.WAITING for phase in LIVING},
    **{(phase, _T.SUSPENDED): _P.SUSPENDED for phase in LIVING},
    **{(phase, _T.END_DECIDED): _P.STOPPING for phase in (*LIVING, _P.SUSPENDED)},
    (_P.FORMING, _T.ASSIGNED): _P.STARTING,
    (_P.STARTING, _T.STEPPED): _P.TRAINING,
    (_P.TRAINING, _T.STEPPED): _P.TRAINING,
    (_P.TRAINING, _T.BARRIER_SET): _P.SAVING,
    (_P.SAVING, _T.BARRIER_SET): _P.SAVING,
    (_P.SUSPENDED, _T.RESUMED): _P.WAITING,
    (_P.STOPPING, _T.ENDED_WELL): _P.SUCCEEDED,
    (_P.STOPPING, _T.ENDED_BADLY): _P.FAILED,
}
"""(phase, trigger) -> phase. What is not here cannot happen."""


def advance(
    phase: JobPhase, trigger: Trigger, story: Callable[[], Iterable[str]] = tuple
) -> JobPhase:
    """The phase that follows.

    Raises:
        InvalidPhaseTransitionError: the table has no such step; it carries the story before it.
    """
    following = TABLE.get((phase, trigger))
    if following is None:
        raise InvalidPhaseTransitionError(phase.name, trigger.name, story())
    return following
