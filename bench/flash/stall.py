"""The whole stall of one save: what the trainer waits, and what its steps lose until it is durable.

A step is matrix products of about 9 ms that stay in the cache; on a GPU as many milliseconds of
larger ones, waited for. The optimizer's step, before which
an overlapped copy must be done, comes after 0.6 s of them.
"""

from __future__ import annotations

import statistics
import time
from dataclasses import dataclass
from typing import Any, Final

from bench.flash.systems import System

FORWARD_BACKWARD_SECONDS: Final = 0.6
CALM_STEPS: Final = 60
LIMIT_SECONDS: Final = 60.0
_PRODUCTS: Final = {"cpu": (512, 6), "cuda": (4096, 3)}
"""Size and number of a step's matrix products."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stall:
    """Of one save, in seconds."""

    stall_s: float
    """Waited, and lost by slower steps."""
    blocked_s: float
    """Waited: in the call, and before the optimizer's step."""
    cpu_s: float
    """The stall in CPU time of the training thread: what others take of its core is not in it."""
    durable_s: float
    """Until it was on disk."""


class _Steps:
    """Training steps."""

    def __init__(self, device: str) -> None:
        import torch

        size, self._products = _PRODUCTS[device]
        self._one = torch.randn(size, size, device=device)
        self._other = torch.randn(size, size, device=device)
        self._gpu = device == "cuda"
        self.count = 0

    def step(self) -> float:
        import torch

        begun = time.perf_counter()
        for _ in range(self._products):
            torch.mm(self._one, self._other)
        if self._gpu:
            torch.cuda.current_stream().synchronize()
        self.count += 1
        return time.perf_counter() - begun


def measure(system: System, number: int, device: str) -> Stall:
    """Save once amid training steps."""
    steps: Any = _Steps(device)
    begun_cpu = time.thread_time()
    calm = statistics.median(steps.step() for _ in range(CALM_STEPS))
    calm_cpu = (time.thread_time() - begun_cpu) / CALM_STEPS
    steps.count = 0
    begun, begun_cpu = time.perf_counter(), time.thread_time()
    system.save(number)
    blocked, joined = time.perf_counter() - begun, False
    while not joined or not _done(system, begun):
        steps.step()
        if not joined and time.perf_counter() - begun - blocked >= FORWARD_BACKWARD_SECONDS:
            waited = time.perf_counter()
            system.join()
            blocked += time.perf_counter() - waited
            joined = True
    took = time.perf_counter() - begun
    cpu = time.thread_time() - begun_cpu
    return Stall(
        stall_s=took - steps.count * calm,
        blocked_s=blocked,
        cpu_s=cpu - steps.count * calm_cpu,
        durable_s=took,
    )


def _done(system: System, begun: float) -> bool:
    if time.perf_counter() - begun > LIMIT_SECONDS:
        raise RuntimeError(f"not durable after {LIMIT_SECONDS:g} s")
    return system.is_durable()
