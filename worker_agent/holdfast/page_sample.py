"""A rank's slot of the shared page: values only, for decisions."""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Mapping

from holdfast_wire.messages import Tier


class Section(enum.IntEnum):
    """Work that a rank is doing; the agent learns a time-out for each."""

    INIT = 0
    FIRST_STEP = 1
    TRAIN = 2
    EVAL = 3
    CHECKPOINT = 4
    FINISHING = 5


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class TierSaving:
    """Costs of a rank's saves to one tier; ns, 0: not measured."""

    stop_ns: int = 0
    """Time for which a save stops training; to storage with the delay of steps while it is
    written."""
    durable_ns: int = 0
    """Time from the start of a save until its step is durable; 0 for a tier that is not."""
    every: int | None = None
    """The script's own steps between saves; None: the master's hold."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class SavingSample:
    """Save costs of a rank that follows its master's schedule; ns, 0: not measured."""

    step_ns: int
    """Duration of a training step without any save."""
    tiers: Mapping[Tier, TierSaving]
    """By tier that the rank saves to."""
    seen_id: int
    """Newest schedule that the rank has seen; 0: none."""
    seen_step: int
    """Steps that the rank had completed when it first saw that schedule."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class RankSample:
    """One reading of a slot; times are CLOCK_MONOTONIC nanoseconds, 0 where nothing happened."""

    consistent: bool
    """False when no undisturbed reading was possible in time (the writer was stopped or killed
    inside a write): each value is whole, but they may belong to two neighbouring steps."""
    pid: int
    """Process that owns the slot; 0 before it is claimed."""
    round: int
    attached: bool
    """True once the script called `holdfast.init()`; False: a script without the SDK."""
    step: int
    """Completed steps as the script counts them; 0 before the first in this round."""
    step_ns: int
    """When the last step was completed."""
    step_duration_ns: int
    """Time between the last two steps; 0 before the second step of this round."""
    samples: int
    """Samples of this rank since the round began."""
    loss: float | None
    """Last reported loss (may be NaN); None when the script reports none."""
    section: Section
    section_ns: int
    """When the current section was entered."""
    first_step: int
    """First step completed in this round; 0 before it."""
    first_step_ns: int
    ack_id: int
    """Newest barrier that the rank has seen; 0 for none."""
    ack_step: int
    """Step at which the rank first saw the barrier. A step ≥ the barrier's step means that it came
    too late, or just in time when `answered_id` names it too."""
    answered_id: int
    """Barrier that the rank answered with SAVE_AND_STOP; 0 for none."""
    answered_step: int
    sync_ns: int
    """For how long the newest round of local SGD held this rank up; 0: none yet."""
    work_ns: int
    """Work of this rank on a micro-batch of its newest step; 0: the script tells none."""
    barrier_complete: bool
    """After SAVE_AND_STOP the script ended with exit status 0 and its output is flushed: the
    process may be killed without loss."""
    clean_exit: bool
    """The script ended with exit status 0 and its exit handlers have run."""
    import_variable: str
    """Variable that the script set too late, because it counts only before `import torch`; empty
    for none."""
    saving: SavingSample | None
    """None: the rank does not follow its master's schedule of checkpoints."""
