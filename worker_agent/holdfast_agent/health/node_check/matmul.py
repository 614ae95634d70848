"""Matrix products on the CPUs of a node. `cuda` has those on accelerators."""

from __future__ import annotations

import time

from holdfast_agent.config.cpu_limit import usable_cpus
from holdfast_agent.health.node_check.measured import FigureReporter
from holdfast_wire.resources import Resource

SIZE = 1024
"""Rows and columns; three matrices in float32 take 12 MiB."""
_REPEATS = 3
_REPEAT_SECONDS = 0.25
"""Longer than the period of a CPU quota (0.1 s): a throttled node cannot look fast for once."""


def measure(report: FigureReporter) -> None:
    """Report TFLOP/s in float32; the best of three."""
    with report.measures(Resource.CPU_MATMUL, "cpu"):
        import torch

        # torch counts the machine's CPUs, not those of a container.
        torch.set_num_threads(usable_cpus())
        left, right = torch.randn(SIZE, SIZE), torch.randn(SIZE, SIZE)
        out = torch.mm(left, right)
        report.figure(max(_per_second(left, right, out) for _ in range(_REPEATS)) / 1e12)


def _per_second(left: object, right: object, out: object) -> float:
    import torch

    count, begin = 0, time.monotonic()
    while (passed := time.monotonic() - begin) < _REPEAT_SECONDS or not count:
        torch.mm(left, right, out=out)  # type: ignore[call-overload] # tensors, known to the caller
        count += 1
    return 2.0 * SIZE**3 * count / passed
