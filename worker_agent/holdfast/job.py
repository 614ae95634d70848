"""The public face of the SDK: a training loop reports to its agent and gets an answer.

Belongs here: the calls of a script and the checks of their arguments. Does not belong here: how a
report travels (`holdfast.page_slot`), and what the agent concludes from it.
"""

from __future__ import annotations

import enum
import json
import multiprocessing
import operator
import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final, SupportsFloat, SupportsIndex

from holdfast.environment import Environment
from holdfast.page import Page, PageError
from holdfast.page_layout import StepAnswer
from holdfast.page_sample import Section
from holdfast.page_slot import SlotWriter

_STEP_LIMIT: Final = 2**63
_SAMPLES_LIMIT: Final = 2**40
"""Limit for one step: the tokens of a million ranks fit, and the sum over a job fits into its word.
"""


class Action(enum.Enum):
    """An answer of `Job.step`: what the script has to do now."""

    CONTINUE = "continue"
    """Train on."""
    SAVE = "save"
    """Save a checkpoint of this step to storage and go on: a user asked for one. All ranks get it
    at the same step. When `Checkpointer.step` returns it, the step is saved already."""
    SAVE_AND_STOP = "save-and-stop"
    """Save a checkpoint of this very step, then end with exit status 0. All ranks get it at the
    same step; the job goes on in a new world from that checkpoint."""


CONTINUE: Final = Action.CONTINUE
SAVE: Final = Action.SAVE
SAVE_AND_STOP: Final = Action.SAVE_AND_STOP
_ACTIONS: Final = {StepAnswer.SAVE: SAVE, StepAnswer.SAVE_AND_STOP: SAVE_AND_STOP}


class Job:
    """The running job as one of its ranks sees it; `holdfast.init` makes it.

    One object per process. Its methods are for the thread that trains: they take no lock.
    """

    def __init__(self, environment: Environment, writer: SlotWriter | None) -> None:
        """writer: the rank's slot of the page that it shares with its agent; None: no agent."""
        self._environment = environment
        self._writer = writer
        self._log = (
            StepLog(Path(environment.step_log), environment) if environment.step_log else None
        )
        self._step = 0

    @property
    def rank(self) -> int:
        """Rank of this process in the world, from 0 (RANK); 0 outside a launcher."""
        return self._environment.rank

    @property
    def world_size(self) -> int:
        """Number of ranks in the world (WORLD_SIZE); 1 outside a launcher."""
        return self._environment.world_size

    @property
    def round(self) -> int:
        """Number of this world; grows with each restart and each rescale; 0 without an agent."""
        return self._environment.round

    @property
    def restart_count(self) -> int:
        """Restarts of this job so far, equal on all ranks; 0 without an agent."""
        return self._environment.restart_count

    def step(
        self,
        n: SupportsIndex,
        *,
        samples: SupportsIndex = 0,
        loss: SupportsFloat | None = None,
        fingerprint: SupportsIndex | None = None,
    ) -> Action:
        """Report that `n` steps are completed; call it once after each optimizer step.

        Costs 1.5 µs and calls no network. Without an agent it checks its arguments, writes the step
        log if there is one, and returns CONTINUE.

        Args:
            n: Completed steps since training began (not since the restart): one more than the
                index of a loop that counts from 0. It must grow with each call, and every rank
                counts alike. A second loop in the process counts on: it passes the steps of the
                first loop plus its own.
            samples: Samples that this rank processed since the last call, from 0 to 2**40 - 1.
                `holdfast status` and `watch` show their sum over all ranks as a rate.
            loss: One number: a Python or numpy number, or a tensor of one element, any dtype. The
                call waits for the device if the tensor is on one: pass it every so many steps if
                that costs too much.
            fingerprint: A whole number that identifies the samples of the step. Its sum over all
                ranks must not depend on how the ranks share a batch. Only the step log gets it
                (HOLDFAST_STEP_LOG), for a comparison of two runs.

        Returns:
            CONTINUE: nothing is asked for.
            SAVE: save a checkpoint of this step to storage, then go on (`holdfast checkpoint`).
            SAVE_AND_STOP: save a checkpoint of this step, then end with exit status 0.
            All ranks get SAVE, and all get SAVE_AND_STOP, at the same step, once per request.

        Raises:
            ValueError: `n` does not grow, `samples` is out of range, or `loss` is not one number.
            TypeError: `n`, `samples` or `fingerprint` is no whole number.
        """
        if n.__class__ is not int or n <= self._step or n >= _STEP_LIMIT:
            n = self._checked_step(n)
        if samples.__class__ is not int or not 0 <= samples < _SAMPLES_LIMIT:
            samples = _checked_samples(samples)
        if loss is not None and loss.__class__ is not float:
            loss = _number(loss)
        if fingerprint is not None and fingerprint.__class__ is not int:
            fingerprint = _whole("fingerprint", fingerprint)
        self._step = n
        if self._log is not None:
            self._log.write(n, samples, loss, fingerprint)
        writer = self._writer
        if writer is not None and (asked := writer.step(n, samples, loss)):
            return _ACTIONS[StepAnswer(asked)]
        return CONTINUE

    @property
    def slot(self) -> SlotWriter | None:
        """Slot of the shared page that this rank writes, for the SDK itself; None: no agent."""
        return self._writer

    def detach(self) -> None:
        """Stop reporting: a forked child (a data loader) must not write its parent's slot.

        `init` registers it for every fork; a script need not call it.
        """
        self._writer = None
        self._log = None

    def _checked_step(self, n: SupportsIndex) -> int:
        number = _whole("n", n)
        if not self._step < number < _STEP_LIMIT:
            raise ValueError(
                f"job.step(n={number}): n is the number of completed steps and must grow; the last "
                f"call had n={self._step}. If this is a second loop of the process, it counts on: "
                f"pass n = {self._step} + its own step"
            )
        return number

    @contextmanager
    def section(self, name: str) -> Iterator[None]:
        """Mark work that is no training step, for which the agent has a time-out of its own.

        ```python
        with job.section("eval"):
            evaluate(model)
        ```

        Args:
            name: "init", "first_step", "train", "eval", "checkpoint" or "finishing". Sections nest:
                the outer one holds again when the inner one ends.

        Yields:
            Nothing.

        Raises:
            ValueError: `name` is none of these.
        """
        try:
            section = Section[name.upper()]
        except (KeyError, AttributeError) as error:
            known = ", ".join(member.name.lower() for member in Section)
            raise ValueError(f"job.section({name!r}): expected one of {known}") from error
        writer = self._writer
        if writer is None:
            yield
            return
        outer = writer.section
        writer.enter(section)
        try:
            yield
        finally:
            writer.enter(outer)


def _whole(name: str, value: SupportsIndex) -> int:
    """Return a whole number, numpy's and one-element tensors included; True is none."""
    if isinstance(value, bool):
        raise TypeError(f"job.step({name}={value!r}): expected a whole number")
    try:
        return operator.index(value)
    except TypeError as error:
        raise TypeError(f"job.step({name}={value!r}): expected a whole number") from error


def _checked_samples(samples: SupportsIndex) -> int:
    number = _whole("samples", samples)
    if not 0 <= number < _SAMPLES_LIMIT:
        raise ValueError(
            f"job.step(samples={number}): expected a number ≥ 0 and below {_SAMPLES_LIMIT}"
        )
    return number


def _number(loss: SupportsFloat) -> float:
    """Return the loss as a float; a tensor's `item()` does so without a warning about gradients."""
    if isinstance(loss, str | bytes):  # float() would read them
        raise ValueError(f"job.step(loss={loss!r}): expected one number")  # noqa: TRY004
    item = getattr(loss, "item", None)
    try:
        return float(loss if item is None else item())
    except (TypeError, ValueError, RuntimeError, OverflowError) as error:
        raise ValueError(f"job.step(loss={loss!r}): expected one number") from error


_job: Job | None = None
_adopted: SlotWriter | None = None


def init() -> Job:
    """Return this process's `Job`; the same one at every call.

    Without an agent the job does nothing: `step` checks its arguments and answers CONTINUE.

    Call it before long imports and loading. A world in which no rank has called it counts as one
    that reports no steps, 2 s after its processes run.

    Returns:
        The job of this rank, attached to its agent if the environment names one (HOLDFAST_PAGE).

    Raises:
        ValueError: a variable of the launcher (RANK, WORLD_SIZE, LOCAL_RANK, …) is no whole number.

    Warns:
        RuntimeWarning: the environment names an agent that cannot be reached; the job goes on
            without it.
    """
    global _job  # noqa: PLW0603 - one process is one rank
    if _job is None:
        environment = Environment.read()
        mine = _adopted is not None and _adopted.pid == os.getpid()
        writer = _adopted if mine else _attach(environment.round)
        if writer is not None:
            writer.attach()
        _job = Job(environment, writer)
        os.register_at_fork(after_in_child=_job.detach)
    return _job


def tell_sync(held_ns: int) -> None:
    """Report for how long a round of local SGD held this rank up; without an agent do nothing."""
    if _job is not None and _job.slot is not None:
        _job.slot.say_sync(held_ns)


def tell_work(work_ns: int) -> None:
    """Report this rank's work on a micro-batch of the newest step; without an agent do nothing."""
    if _job is not None and _job.slot is not None:
        _job.slot.say_work(work_ns)


def adopt(writer: SlotWriter) -> None:
    """Have `init` use a slot that the starter of the script has claimed for it; not for scripts.

    `init` ignores it in any process but the one that claimed it.
    """
    global _adopted  # noqa: PLW0603 - one process is one rank
    _adopted = writer


def _attach(round_number: int) -> SlotWriter | None:
    """Return the slot this process may write, or None with a warning that says why not."""
    try:
        place = Page.attach_from_env()
        return None if place is None else SlotWriter(*place, round_number)
    except PageError as error:
        if multiprocessing.parent_process() is None:  # a helper is no rank: nothing to say
            warnings.warn(f"holdfast runs without its agent: {error}", RuntimeWarning, stacklevel=3)
        return None


class StepLog:
    """A line of `rank-N.jsonl` for each step of this rank, for comparing two runs.

    Written only where HOLDFAST_STEP_LOG names a directory. Each line is one `write` on an O_APPEND
    descriptor: a rank that is killed leaves whole lines, and its successor appends to them.
    """

    def __init__(self, directory: Path, environment: Environment) -> None:
        """Raises OSError if the directory cannot be made or written to."""
        directory.mkdir(parents=True, exist_ok=True)
        path = directory / f"rank-{environment.rank}.jsonl"
        self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        self._fixed = {
            "rank": environment.rank,
            "round": environment.round,
            "world_size": environment.world_size,
        }

    def write(
        self, step: int, samples: int, loss: float | None, fingerprint: SupportsIndex | None
    ) -> None:
        """Append one line."""
        figures: dict[str, object] = {"step": step, "samples": samples, "loss": loss}
        if fingerprint is not None:
            figures["fingerprint"] = fingerprint
        os.write(self._fd, json.dumps({**figures, **self._fixed}).encode() + b"\n")
