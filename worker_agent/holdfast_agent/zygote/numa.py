"""CPU sets for torchrun's --numa-binding, from torch in a short-lived process.

torch finds the CPUs next to a device by asking CUDA, which neither the zygote (it must stay
forkable) nor a worker (its script may still choose devices) may initialise.
"""

from __future__ import annotations

import inspect
import json
import os
import select
import signal
from collections.abc import Iterable
from typing import Any

from holdfast_agent.zygote.process_tree import die_with_parent

_PATIENCE_SECONDS = 30.0
"""Deadline, s; initialising CUDA for eight devices takes a few seconds on a busy machine."""


class NumaError(Exception):
    """The CPUs to bind to cannot be found; the text says why."""


def cpu_sets(mode: str, local_ranks: Iterable[int]) -> dict[int, frozenset[int]]:
    """Return the CPUs of each local rank. Forks, and blocks for seconds: before workers exist."""
    reader, writer = os.pipe2(os.O_CLOEXEC)
    asker = os.getpid()
    pid = os.fork()
    if pid == 0:
        die_with_parent(asker)
        _answer(mode, list(local_ranks), writer)
    os.close(writer)
    try:
        return _collect(reader)
    finally:
        os.close(reader)
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


def _answer(mode: str, local_ranks: list[int], writer: int) -> None:
    """Write the sets, or the reason for none, as JSON; then exit."""
    try:
        from torch.numa import binding

        options = binding.NumaOptions(affinity_mode=binding.AffinityMode(mode))
        cpus_of: Any = binding._get_logical_cpus_to_bind_to  # noqa: SLF001 - the answer without the act
        names = inspect.signature(cpus_of).parameters
        device = "device_index" if "device_index" in names else "gpu_index"  # before torch 2.10
        found: object = {
            rank: sorted(cpus_of(**{device: rank, "numa_options": options})) for rank in local_ranks
        }
    except Exception as error:  # noqa: BLE001 - becomes the text of a NumaError
        found = f"{type(error).__name__}: {error}"
    os.write(writer, json.dumps(found).encode())
    os._exit(0)


def _collect(reader: int) -> dict[int, frozenset[int]]:
    body = b""
    while select.select([reader], [], [], _PATIENCE_SECONDS)[0]:
        part = os.read(reader, 65536)
        body += part
        if not part:
            break
    found = json.loads(body) if body else f"no answer from torch within {_PATIENCE_SECONDS:.0f} s"
    if isinstance(found, str):
        raise NumaError(found)
    return {int(rank): frozenset(cpus) for rank, cpus in found.items()}
