"""What a reader sees of one rank: the decoded slot of the shared page, a value."""

from __future__ import annotations

from dataclasses import dataclass

from holdfast.layout import NOTICE_BYTES, NOTICE_OFFSET, Section, Word


@dataclass(frozen=True, slots=True, kw_only=True)
class SavingSample:
    """What a rank that follows its master's schedule says of its saves; ns, 0: not measured."""

    step_ns: int
    """A training step without any save."""
    memory_ns: int
    """That a save to memory stops training."""
    storage_ns: int
    """That a save to storage costs in all."""
    durable_ns: int
    """From such a save until it is durable."""
    memory_every: int | None
    """The script's own number of steps; None: the master's holds."""
    storage_every: int | None
    seen_id: int
    """Newest schedule that the rank has heard of; 0: none."""
    seen_step: int
    """Steps that it had completed then."""


@dataclass(frozen=True, slots=True, kw_only=True)
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
    echo_id: int
    """Newest arm that the rank has seen; 0 for none."""
    echo_step: int
    """Step at which it was seen first; ≥ the armed step means: too late, or just in time when
    `answered_id` names it too."""
    answered_id: int
    """Arm that was answered with SAVE_AND_STOP; 0 for none."""
    answered_step: int
    boundary_complete: bool
    """After SAVE_AND_STOP the script ended with exit status 0 and its output is flushed: the
    process may be killed without loss."""
    clean_exit: bool
    """The script ended with exit status 0 and its exit handlers have run."""
    import_variable: str
    """Variable set by the script that only counts before `import torch`; empty for none."""
    saving: SavingSample | None
    """None: the rank does not follow its master's schedule of checkpoints."""


def decode(copy: bytes, *, consistent: bool) -> RankSample:
    """Turn the bytes of one slot into a sample; an impossible section reads as INIT."""
    words = memoryview(copy).cast("Q")
    section = words[Word.SECTION]
    known = section <= Section.FINISHING
    notice = copy[NOTICE_OFFSET : NOTICE_OFFSET + min(words[Word.IMPORT_VARIABLE], NOTICE_BYTES)]
    return RankSample(
        consistent=consistent and known,
        pid=words[Word.PID],
        round=words[Word.ROUND],
        attached=bool(words[Word.ATTACHED]),
        step=words[Word.STEP],
        step_ns=words[Word.STEP_NS],
        step_duration_ns=words[Word.STEP_DURATION_NS],
        samples=words[Word.SAMPLES],
        loss=memoryview(copy).cast("d")[Word.LOSS] if words[Word.HAS_LOSS] else None,
        section=Section(section) if known else Section.INIT,
        section_ns=words[Word.SECTION_NS],
        first_step=words[Word.FIRST_STEP],
        first_step_ns=words[Word.FIRST_STEP_NS],
        echo_id=words[Word.ECHO_ID],
        echo_step=words[Word.ECHO_STEP],
        answered_id=words[Word.ANSWERED_ID],
        answered_step=words[Word.ANSWERED_STEP],
        boundary_complete=bool(words[Word.BOUNDARY_COMPLETE]),
        clean_exit=bool(words[Word.CLEAN_EXIT]),
        import_variable=notice.decode(errors="replace"),
        saving=_saving(words) if words[Word.SAVES] else None,
    )


def _saving(words: memoryview) -> SavingSample:
    return SavingSample(
        step_ns=words[Word.SAVED_STEP_NS],
        memory_ns=words[Word.MEMORY_NS],
        storage_ns=words[Word.STORAGE_NS],
        durable_ns=words[Word.DURABLE_NS],
        memory_every=words[Word.MEMORY_EVERY] - 1 if words[Word.MEMORY_EVERY] else None,
        storage_every=words[Word.STORAGE_EVERY] - 1 if words[Word.STORAGE_EVERY] else None,
        seen_id=words[Word.SCHEDULE_SEEN],
        seen_step=words[Word.SCHEDULE_SEEN_STEP],
    )
