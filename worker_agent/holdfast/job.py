"""What a training loop tells its agent and hears from it.

The public face of the SDK. How it travels is `holdfast.slot`; what the agent concludes is the
agent's business.
"""

from __future__ import annotations

import enum
import multiprocessing
import operator
import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final, SupportsFloat, SupportsIndex

from holdfast.environment import Environment
from holdfast.layout import Answer, Section
from holdfast.page import Page, PageError
from holdfast.slot import SlotWriter
from holdfast.step_log import StepLog

_STEP_LIMIT: Final = 2**63
_SAMPLES_LIMIT: Final = 2**40
"""Of one step: a million ranks' worth of tokens, and their sum over a job fits into its word."""


class Action(enum.Enum):
    """What `Job.step` asks of the script."""

    CONTINUE = "continue"
    SAVE = "save"
    """Save a checkpoint of this very step to storage and go on: somebody asked for one. All ranks
    get it at the same step. `Checkpointer.step` has saved already when it returns this."""
    SAVE_AND_STOP = "save-and-stop"
    """Save a checkpoint of this very step, then end with exit status 0. All ranks get it at the
    same step; the job goes on in a new world from that checkpoint."""


CONTINUE: Final = Action.CONTINUE
SAVE: Final = Action.SAVE
SAVE_AND_STOP: Final = Action.SAVE_AND_STOP
_ACTIONS: Final = {Answer.SAVE: SAVE, Answer.SAVE_AND_STOP: SAVE_AND_STOP}


class Job:
    """The running job as one of its ranks sees it; made by `holdfast.init`."""

    def __init__(self, environment: Environment, writer: SlotWriter | None) -> None:
        """Take the parsed environment, and the slot to write to (None: no agent)."""
        self._environment = environment
        self._writer = writer
        self._log = (
            StepLog(Path(environment.step_log), environment) if environment.step_log else None
        )
        self._step = 0

    @property
    def rank(self) -> int:
        """This process's rank in the world."""
        return self._environment.rank

    @property
    def world_size(self) -> int:
        """Number of ranks in the world."""
        return self._environment.world_size

    @property
    def round(self) -> int:
        """Number of this world; grows with each restart and each rescale; 0 without an agent."""
        return self._environment.round

    @property
    def restart_count(self) -> int:
        """Restarts of this job so far, equal on all ranks."""
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

        n: completed steps since training began (not since the restart): one more than the index
            of a loop that counts from 0. Must grow with each call; every rank counts alike.
        samples: samples that this rank processed since the last call.
        loss: a number or a one-element tensor. Reading a CUDA tensor waits for the device; pass it
            every so many steps if that hurts.
        fingerprint: a whole number that says which samples those were, by a rule whose sum over
            all ranks does not depend on how they share a batch. It goes into the step log only,
            for who compares two runs (`holdfast run --chaos`).

        Returns SAVE_AND_STOP once per request, at the same step on all ranks, else CONTINUE.
        Raises ValueError (TypeError for a value that is no number) that names the bad argument.
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
            return _ACTIONS[Answer(asked)]
        return CONTINUE

    @property
    def slot(self) -> SlotWriter | None:
        """Where this rank writes, for the SDK's own parts; None without an agent."""
        return self._writer

    def detach(self) -> None:
        """Stop reporting; forked helpers (data loaders) must not write their parent's slot."""
        self._writer = None
        self._log = None

    def _checked_step(self, n: SupportsIndex) -> int:
        number = _whole("n", n)
        if not self._step < number < _STEP_LIMIT:
            raise ValueError(
                f"job.step(n={number}): n is the number of completed steps and must grow; the last "
                f"call had n={self._step}"
            )
        return number

    @contextmanager
    def section(self, name: str) -> Iterator[None]:
        """Say that what happens inside is no training step and has a time-out of its own.

        name: "init", "first_step", "train", "eval", "checkpoint" or "finishing". Sections nest.
        Raises ValueError for another name.
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


def adopt(writer: SlotWriter) -> None:
    """Make `init` use a slot that whoever started the script has claimed for it already."""
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
