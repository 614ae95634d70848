"""The job's state machine: a table of phases and what moves a job from one to the next.

Belongs here: which step from which phase is possible, and what each phase means. Does not belong
here: when a step is taken. The page docs/reference/state-machine.md is drawn from this table.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable

from holdfast_master.job.faults import InvalidTransitionError
from holdfast_wire.messages import JobPhase


class Trigger(enum.Enum):
    """What moves a job from one phase to the next; the value is the sentence of the diagram."""

    DECIDED = "a world is decided"
    HELD = "no world can be formed now"
    ASSIGNED = "every member was told its place"
    STEPPED = "all ranks completed a step"
    ARMED = "a boundary is armed"
    SUSPENDED = "the spec suspends the job"
    RESUMED = "the spec resumes the job"
    END_DECIDED = "the end is decided"
    ENDED_WELL = "all nodes are told, the policy is met"
    ENDED_BADLY = "all nodes are told, the policy is not met"


_P, _T = JobPhase, Trigger

LIVING = (_P.WAITING, _P.FORMING, _P.STARTING, _P.TRAINING, _P.SAVING)
"""Phases in which the job runs or wants to."""

ENDED = frozenset({_P.SUCCEEDED, _P.FAILED})
"""Phases that nothing leaves."""

TABLE: dict[tuple[JobPhase, Trigger], JobPhase] = {
    **{(phase, _T.DECIDED): _P.FORMING for phase in LIVING},
    **{(phase, _T.HELD): _P.WAITING for phase in LIVING},
    **{(phase, _T.SUSPENDED): _P.SUSPENDED for phase in LIVING},
    **{(phase, _T.END_DECIDED): _P.STOPPING for phase in (*LIVING, _P.SUSPENDED)},
    (_P.FORMING, _T.ASSIGNED): _P.STARTING,
    (_P.STARTING, _T.STEPPED): _P.TRAINING,
    (_P.TRAINING, _T.STEPPED): _P.TRAINING,
    (_P.TRAINING, _T.ARMED): _P.SAVING,
    (_P.SAVING, _T.ARMED): _P.SAVING,
    (_P.SUSPENDED, _T.RESUMED): _P.WAITING,
    (_P.STOPPING, _T.ENDED_WELL): _P.SUCCEEDED,
    (_P.STOPPING, _T.ENDED_BADLY): _P.FAILED,
}
"""(phase, trigger) -> phase. What is not here cannot happen."""

MEANINGS = {
    _P.WAITING: "Not enough nodes for a world, or a recovery is held back for a moment.",
    _P.FORMING: "A world is decided; its store is being prepared.",
    _P.STARTING: "Assignments are out; not all ranks have completed a step yet.",
    _P.TRAINING: "All ranks of the world step.",
    _P.SAVING: "A boundary is armed: all ranks are to save and stop after the same step.",
    _P.STOPPING: "The end was decided; nodes are being told and their processes ended.",
    _P.SUSPENDED: "Stopped at a checkpoint, nodes released; waits for the spec to resume it.",
    _P.SUCCEEDED: "The success policy is met.",
    _P.FAILED: "Ended without success; the reason says why.",
}
"""One sentence for each phase."""


def advance(
    phase: JobPhase, trigger: Trigger, story: Callable[[], Iterable[str]] = tuple
) -> JobPhase:
    """The phase that follows.

    Raises:
        InvalidTransitionError: the table has no such step; carries the story of what came before.
    """
    following = TABLE.get((phase, trigger))
    if following is None:
        raise InvalidTransitionError(phase.name, trigger.name, story())
    return following


def diagram() -> str:
    """The table as a mermaid state diagram, always in the same order."""
    lines = ["stateDiagram-v2", "    [*] --> WAITING"]
    lines += [
        f"    {phase.name} --> {following.name}: {trigger.value}"
        for (phase, trigger), following in sorted(
            TABLE.items(), key=lambda step: (step[0][0].value, step[1].value, step[0][1].name)
        )
    ]
    lines += [f"    {phase.name} --> [*]" for phase in sorted(ENDED)]
    return "\n".join(lines)


def page() -> str:
    """docs/reference/state-machine.md."""
    meanings = "\n".join(f"| {phase.name} | {text} |" for phase, text in MEANINGS.items())
    return (
        "# The job's state machine\n\n"
        "Drawn from the table in `master/holdfast_master/job/transitions.py` by "
        "`python -m holdfast_master.job.transitions`; a test compares the two.\n"
        "A step that is not in the diagram raises `InvalidTransitionError` with the story of what "
        "came before.\n\n"
        f"| phase | meaning |\n|---|---|\n{meanings}\n\n"
        f"```mermaid\n{diagram()}\n```\n"
    )


if __name__ == "__main__":
    print(page(), end="")  # noqa: T201
