"""All-reduce over gloo between two ranks: of a pair of nodes, or of one node with itself.

The connections are those that a training script gets: gloo chooses the interface by
GLOO_SOCKET_IFNAME, or by the host's name.
"""

from __future__ import annotations

import datetime as dt
import threading
import time
from typing import Any

from holdfast_agent.health.node_check.measured import NotMeasurableError

ELEMENTS = 4 << 20
"""Elements of the float32 tensor, 16 MiB: one bucket of DDP has 25."""
_SECONDS = 0.3
_MOST_REPEATS = 50
_TIMEOUT = dt.timedelta(seconds=10)
"""For the connection of both ranks, and for one all-reduce."""


def host_store(host: str) -> tuple[Any, int]:
    """Return a TCPStore that is served here, and its port."""
    from torch.distributed import TCPStore

    store = TCPStore(host, 0, is_master=True, wait_for_workers=False, timeout=_TIMEOUT)
    return store, int(store.port)


def join_store(host: str, port: int) -> Any:
    """Return the partner's TCPStore."""
    from torch.distributed import TCPStore

    return TCPStore(host, port, is_master=False, timeout=_TIMEOUT)


def bytes_per_second(store: Any, rank: int) -> float:
    """Return the bytes of the tensor that two ranks reduce in a second.

    store: One store for both ranks.
    rank: 0 or 1.
    """
    import torch
    from torch.distributed import ProcessGroupGloo

    group: Any = ProcessGroupGloo(store, rank, 2, _TIMEOUT)
    tensor = torch.ones(ELEMENTS)
    group.allreduce([tensor]).wait()
    begin = time.monotonic()
    group.allreduce([tensor]).wait()
    # Both ranks must make as many calls: rank 0 says how many fit.
    if rank == 0:
        once = max(time.monotonic() - begin, 1e-6)
        store.set("repeats", str(max(1, min(_MOST_REPEATS, int(_SECONDS / once)))))
    repeats = int(store.get("repeats"))
    tensor.fill_(1.0)
    begin = time.monotonic()
    for _ in range(repeats):
        group.allreduce([tensor]).wait()
    passed = time.monotonic() - begin
    expected = 2.0**repeats
    if not bool(torch.isclose(tensor[[0, -1]], torch.tensor(expected)).all()):
        raise RuntimeError(f"the sum is {tensor[0].item()}, and {expected} is right")
    return tensor.nbytes * repeats / passed


def with_itself() -> float:
    """Return the bytes per second of two ranks in this process, over the node's own addresses."""
    require_gloo()
    from torch.distributed import HashStore

    store, results = HashStore(), dict[int, float | Exception]()

    def work(rank: int) -> None:
        try:
            results[rank] = bytes_per_second(store, rank)
        except RuntimeError as error:
            results[rank] = error

    threads = [threading.Thread(target=work, args=(rank,)) for rank in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for result in results.values():
        if isinstance(result, Exception):
            raise result
    return min(float(result) for result in results.values() if not isinstance(result, Exception))


def require_gloo() -> None:
    """Raise NotMeasurableError where this torch has no gloo."""
    from torch import distributed

    if not (distributed.is_available() and distributed.is_gloo_available()):
        raise NotMeasurableError("this torch has no gloo")
