"""Evidence of ranks of a world that hangs, as agents collect it."""

from __future__ import annotations

import dataclasses
from typing import Any

from holdfast_wire.messages import GroupTail, RankEvidence

LIB = "/opt/venv/lib/python3.11"
TORCH = f"{LIB}/site-packages/torch"
SCRIPT = ("/job/train.py", "<module>")


def stack(*frames: tuple[str, str]) -> str:
    """Return a dump of the server's own thread, a helper thread and the main thread."""
    lines = [f'  File "{file}", line {at + 10} in {name}' for at, (file, name) in enumerate(frames)]
    return "\n".join(
        [
            "Current thread 0x00007f0c (most recent call first):",
            "  <no Python frame>",
            "",
            "Thread 0x00007f0d (most recent call first):",
            f'  File "{LIB}/threading.py", line 982 in run',
            "",
            "Thread 0x00007f0e (most recent call first):",
            *lines,
            "",
        ]
    )


REDUCES = stack(
    (f"{TORCH}/distributed/distributed_c10d.py", "all_reduce"),
    (f"{TORCH}/distributed/c10d_logger.py", "wrapper"),
    SCRIPT,
)
BACKWARD = stack(
    (f"{TORCH}/autograd/graph.py", "_engine_run_backward"),
    (f"{TORCH}/_tensor.py", "backward"),
    SCRIPT,
)
INITIALIZES = stack(
    (f"{TORCH}/distributed/distributed_c10d.py", "_new_process_group_helper"),
    (f"{TORCH}/distributed/distributed_c10d.py", "init_process_group"),
    SCRIPT,
)
LOADS = stack(
    (f"{LIB}/selectors.py", "select"),
    (f"{LIB}/multiprocessing/connection.py", "wait"),
    (f"{TORCH}/utils/data/dataloader.py", "_try_get_data"),
    SCRIPT,
)
DATA_SET = stack(("/job/data.py", "__getitem__"), (f"{TORCH}/utils/data/_utils/fetch.py", "fetch"))
COMPILES = stack(
    (f"{LIB}/subprocess.py", "_try_wait"),
    (f"{TORCH}/_inductor/codecache.py", "compile"),
    (f"{TORCH}/_dynamo/convert_frame.py", "_compile"),
    SCRIPT,
)
SAVES = stack((f"{TORCH}/serialization.py", "_save"), SCRIPT)
QUEUE = stack((f"{LIB}/threading.py", "wait"), (f"{LIB}/queue.py", "get"), SCRIPT)
OVER = stack((f"{LIB}/threading.py", "_shutdown"))
USER = stack(("/job/model.py", "forward"), SCRIPT)
ELSEWHERE = stack(("/job/metrics.py", "log"), SCRIPT)


def tail(sequence: int, group: str = "0", **fields: Any) -> GroupTail:
    """Return the newest collective of a group, by default an all-reduce on gloo."""
    known = {
        "operation": "gloo:all_reduce",
        "sizes": "[[2, 3]]",
        "dtypes": "['Float']",
        "age_seconds": 100.0,
    }
    return GroupTail(group=group, sequence=sequence, **{**known, **fields})


def rank(number: int, sequence: int | None = None, **fields: Any) -> RankEvidence:
    """Return a rank; by default it sleeps inside an all-reduce of a group of all ranks."""
    known: dict[str, Any] = {
        "process_state": "S",
        "kernel_function": "futex_do_wait",
        "observed_seconds": 1.0,
        "server_answered": True,
        "gil_free": True,
        "stack": REDUCES,
    }
    if sequence is not None:
        known["groups"] = (tail(sequence, ranks=(0, 1, 2)),)
    return RankEvidence(rank=number, pid=100 + number, **{**known, **fields})


def with_two(odd: RankEvidence) -> list[RankEvidence]:
    """Return the odd rank 1, by default at collective 5, and two ranks that wait in 6."""
    if odd.server_answered and not odd.groups:
        odd = dataclasses.replace(odd, groups=(tail(5, ranks=(0, 1, 2)),))
    return [rank(0, 6), odd, rank(2, 6)]


RUNS: dict[str, Any] = {"process_state": "R", "kernel_function": "", "cpu_seconds": 0.9}
SLEEPS: dict[str, Any] = {"kernel_function": "hrtimer_nanosleep"}
STUCK: dict[str, Any] = {"server_answered": False, "gil_free": False, "stack": ""}
