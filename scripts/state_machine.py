"""Writes `docs/reference/state-machine.md` from the job's phases, or checks that it is up to date.

`make manifests` writes; `--check` exits with 1 where the page would change. The steps are those of
the master's table; the meaning of each phase stands here.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from generated_page import keep
from holdfast_master.job.state.phases import ENDED, TABLE
from holdfast_wire.messages import JobPhase

PAGE: Final = Path(__file__).resolve().parent.parent / "docs/reference/state-machine.md"
MEANINGS: Final = {
    JobPhase.WAITING: "Not enough nodes for a world, or a recovery is held back for a moment.",
    JobPhase.FORMING: "A world is decided; its store is being prepared.",
    JobPhase.STARTING: "Assignments are out; not all ranks have completed a step yet.",
    JobPhase.TRAINING: "All ranks of the world step.",
    JobPhase.SAVING: "A barrier is set: all ranks are to save and stop after the same step.",
    JobPhase.STOPPING: "The end was decided; nodes are being told and their processes ended.",
    JobPhase.SUSPENDED: "Stopped at a checkpoint, nodes released; waits for the spec to resume it.",
    JobPhase.SUCCEEDED: "The success policy is met.",
    JobPhase.FAILED: "Ended without success; the reason says why.",
}
"""One sentence for each phase."""


def diagram() -> str:
    """Return the table as a mermaid state diagram, always in the same order."""
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
    """Return the page."""
    meanings = "\n".join(f"| {phase.name} | {text} |" for phase, text in MEANINGS.items())
    return (
        "# The job's state machine\n\n"
        "<!-- Written by scripts/state_machine.py: change that, then run `make manifests`. -->\n\n"
        "The steps are those of the table in `master/holdfast_master/job/state/phases.py`.\n"
        "A step that is not in the diagram raises `InvalidPhaseTransitionError` with the story "
        "of what came before.\n\n"
        f"| phase | meaning |\n|---|---|\n{meanings}\n\n"
        f"```mermaid\n{diagram()}\n```\n"
    )


if __name__ == "__main__":
    keep(PAGE, page())
