"""Trainings under torchft's own LocalSGD and DiLoCo, each replica a replica group of one rank.

Belongs here: the lines that torchft's manual wants, and why it is left out where it is. torchft is
no dependency: a Python path that has it (`pip install --target DIR torchft`) is enough. Does not
belong here: what is measured (`rank`).
"""

from __future__ import annotations

import importlib
import importlib.metadata
import importlib.util
import os
from collections.abc import Mapping
from contextlib import ExitStack
from datetime import timedelta
from typing import Any, Final

import torch
import torch.distributed as dist
from torch import nn

from bench.local_sgd.plan import NESTEROV

_LIMIT: Final = timedelta(seconds=300)
"""For a quorum: the slowest replica's whole round, on a busy machine."""


def missing() -> str:
    """Return why torchft cannot run here; empty if it can."""
    if importlib.util.find_spec("torchft") is None:
        return "torchft is not on the Python path: pip install --target DIR torchft"
    try:
        _module("local_sgd")
    except Exception as error:  # noqa: BLE001 - another project's import may raise anything
        return f"torchft cannot be imported: {type(error).__name__}: {error}"
    return ""


def version() -> str:
    """Return the version that is measured; empty without torchft."""
    return "" if missing() else importlib.metadata.version("torchft")


def _module(name: str) -> Any:
    """Return a module of torchft, which the project's environment has not."""
    return importlib.import_module(f"torchft.{name}")


class Torchft:
    """An optimizer that torchft's hooks follow from the end of the warm-up on."""

    def __init__(
        self, case: Mapping[str, Any], model: nn.Module, inner: torch.optim.Optimizer
    ) -> None:
        """Begin a quorum of all ranks."""
        self._case, self._model, self._inner = case, model, inner
        self._left = case["config"].get("local_sgd_warmup_steps", 0)
        self._stack = ExitStack()
        self._manager = _manager(self._stack)

    def zero_grad(self) -> None:
        """Reset the gradients."""
        self._inner.zero_grad()

    def step(self) -> None:
        """Make an inner step, and the round that it ends."""
        if self._left == 0:
            self._stack.enter_context(self._rounds())
        self._left -= 1
        self._inner.step()

    def close(self) -> None:
        """End torchft's threads and servers."""
        dist.barrier()  # none may still need the lighthouse
        self._stack.close()

    def _rounds(self) -> Any:
        ways, every = _module("local_sgd"), self._case["interval"]
        if not self._case["outer"]:
            return ways.LocalSGD(self._manager, self._model, self._inner, sync_every=every)
        sgd: Any = torch.optim.SGD
        outer = sgd(self._model.parameters(), **NESTEROV)
        return ways.DiLoCo(
            self._manager, [self._model], self._inner, outer, sync_every=every,
            use_bucketization=True,
        )  # fmt: skip


def _manager(stack: ExitStack) -> Any:
    """Return a manager of this rank; rank 0 has the lighthouse."""
    own = dist.TCPStore("0.0.0.0", 0, is_master=True, wait_for_workers=False)  # noqa: S104
    stack.callback(lambda: own)  # lives as long as the manager
    manager = _module("manager").Manager(
        pg=_module("process_group").ProcessGroupGloo(timeout=_LIMIT),
        load_state_dict=None,
        state_dict=None,
        min_replica_size=dist.get_world_size(),
        use_async_quorum=False,
        timeout=_LIMIT,
        quorum_timeout=_LIMIT,
        rank=0,
        world_size=1,
        store_addr=_address(),
        store_port=own.port,
        lighthouse_addr=_lighthouse(stack),
        replica_id=f"replica_{dist.get_rank()}",
        hostname=_address(),
        init_sync=False,  # all begin with the same weights
    )
    stack.callback(manager.shutdown)
    return manager


def _lighthouse(stack: ExitStack) -> str:
    """Return the address of the lighthouse that rank 0 starts."""
    port = torch.zeros(1, dtype=torch.int64)
    if dist.get_rank() == 0:
        server = _module("coordination").LighthouseServer(
            bind="0.0.0.0:0", min_replicas=dist.get_world_size(), join_timeout_ms=100
        )
        stack.callback(server.shutdown)
        port[0] = int(server.address().rpartition(":")[2])
    dist.broadcast(port, 0)
    return f"http://{os.environ['MASTER_ADDR']}:{int(port)}"


def _address() -> str:
    """Return this rank's: ranks in networks of their own have the addresses after rank 0's."""
    first = os.environ["MASTER_ADDR"]
    head, _, last = first.rpartition(".")
    return first if first == "127.0.0.1" else f"{head}.{int(last) + dist.get_rank()}"
