"""Faults on request, for the demo and the tests. No training happens here.

They come from outside: each flag wraps one call that the script makes anyway, so that the script
itself has one line for all of them and, without a flag, nothing is changed.
"""

from __future__ import annotations

import argparse
import atexit
import functools
import os
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

import holdfast
from holdfast.flash.trainer.client import Client

PHASES = {
    "init": "before the process group exists",
    "first-step": "before the first backward pass",
    "checkpoint": "with this rank's part of a checkpoint in memory and none of it on storage",
}


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault: what happens, on which rank, and the file that keeps it from happening twice."""

    when: str
    """A step number, a phase or milliseconds; whatever the flag's first part is."""
    code: int = 0
    """Exit code, for --exit-at."""
    rank: int | None = None
    """None: every rank."""
    once: str = ""
    """Path; where it exists the fault stays away, else it is created. Empty: every time."""

    def is_due(self) -> bool:
        """Tell whether this process is meant, and take the once-file if so."""
        if self.rank is not None and self.rank != int(os.environ.get("RANK", "0")):
            return False
        if not self.once:
            return True
        file = Path(self.once)
        file.parent.mkdir(parents=True, exist_ok=True)
        try:
            file.touch(exist_ok=False)
        except FileExistsError:
            return False
        return True


def parse_args(parser: argparse.ArgumentParser) -> argparse.Namespace:
    """Add the flags for faults, parse the command line, arm what it asks for."""
    group = parser.add_argument_group("faults", "WHO is [:RANK[:ONCE_FILE]]; rank 0 if absent")
    add = functools.partial(group.add_argument, action="append", default=[])
    add("--crash-at", type=_at_step, metavar="STEP[WHO]", help="kill -9 this rank in a step")
    add("--raise-at", type=_at_step, metavar="STEP[WHO]", help="raise an exception in a step")
    add("--exit-at", type=_at_step_with_code, metavar="STEP:CODE[WHO]", help="exit with a code")
    add("--crash-in", type=_in_phase, metavar="PHASE[WHO]", help=f"kill -9 in {', '.join(PHASES)}")
    add("--extra-work-ms", type=_lasting, metavar="MS[:RANK]", help="sleep in every step")
    add("--linger-ms", type=_lasting, metavar="MS[:RANK]", help="sleep when training is done")
    args = parser.parse_args()
    _barrier_steps(args)
    for fault in args.crash_in:
        _barrier_phase(fault)
    if linger := _milliseconds(args.linger_ms):
        atexit.register(time.sleep, linger / 1000)
    return args


def _barrier_phase(fault: Fault) -> None:
    """Kill this process when it comes to the fault's phase."""

    def crash(*_: object, durable: bool = True) -> None:
        if durable and fault.is_due():
            _say(f"kill -9 in {fault.when}, {PHASES[fault.when]}")
            _kill()

    if fault.when == "init":
        crash()
    elif fault.when == "first-step":
        _wrap(torch.Tensor, "backward", before=crash)
    else:
        _wrap(Client, "saved", before=crash)


def _barrier_steps(args: argparse.Namespace) -> None:
    """Wrap `job.step`, so that step N is computed and neither reported nor saved."""
    armed = [args.crash_at, args.raise_at, args.exit_at, args.extra_work_ms]
    if not any(armed):
        return
    pause = _milliseconds(args.extra_work_ms) / 1000

    def at_step(_: holdfast.Job, step: int, **__: object) -> None:
        time.sleep(pause)
        for fault in _due(args.crash_at, step):
            _say(f"kill -9 in step {fault.when}")
            _kill()
        for fault in _due(args.raise_at, step):
            raise RuntimeError(f"fault on request in step {fault.when}")
        for fault in _due(args.exit_at, step):
            _say(f"exit code {fault.code} in step {fault.when}")
            sys.exit(fault.code)

    _wrap(holdfast.Job, "step", before=at_step)


def _milliseconds(faults: list[Fault]) -> int:
    """Return the sum of those that mean this rank."""
    return sum(int(fault.when) for fault in faults if fault.is_due())


def _due(faults: list[Fault], step: int) -> list[Fault]:
    return [fault for fault in faults if int(fault.when) == step and fault.is_due()]


def _wrap(owner: Any, name: str, before: Callable[..., None]) -> None:
    call = getattr(owner, name)

    @functools.wraps(call)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        before(*args, **kwargs)
        return call(*args, **kwargs)

    setattr(owner, name, wrapped)


def _kill() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def _say(text: str) -> None:
    rank = os.environ.get("RANK", "0")
    print(f"fault on request, rank {rank}: {text}", file=sys.stderr, flush=True)


# ---------------------------------------------------------------------- the flags' own grammar


def _at_step(text: str) -> Fault:
    step, *who = text.split(":", 2)
    return _fault(_whole("STEP", step, least=1), who)


def _at_step_with_code(text: str) -> Fault:
    step, code, *who = text.split(":", 3) if ":" in text else (text, "")
    number = _whole("CODE", code)
    if int(number) > 255:
        raise argparse.ArgumentTypeError(f"CODE {number}: expected at most 255")
    return _fault(_whole("STEP", step, least=1), who, code=int(number))


def _in_phase(text: str) -> Fault:
    phase, *who = text.split(":", 2)
    if phase not in PHASES:
        raise argparse.ArgumentTypeError(f"PHASE {phase!r}: expected one of {', '.join(PHASES)}")
    return _fault(phase, who)


def _lasting(text: str) -> Fault:
    milliseconds, *rank = text.split(":", 1)
    return Fault(_whole("MS", milliseconds), rank=int(_whole("RANK", rank[0])) if rank else None)


def _fault(when: str, who: list[str], code: int = 0) -> Fault:
    rank = int(_whole("RANK", who[0])) if who else 0
    return Fault(when, code, rank, who[1] if len(who) > 1 else "")


def _whole(name: str, text: str, least: int = 0) -> str:
    if not (text.isascii() and text.isdecimal()) or int(text) < least:
        raise argparse.ArgumentTypeError(f"{name} {text!r}: expected a whole number ≥ {least}")
    return text
