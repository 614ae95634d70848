"""Words for the fate of a process, which events, conditions and commands repeat."""

from __future__ import annotations

import pytest

from holdfast_master.job.state.wording import nodes_named, pod_end, worker_end
from holdfast_master.policies.quantities import counted, period
from holdfast_wire.messages import PodObservation, PodPhase, WorkerExited


@pytest.mark.parametrize(
    ("message", "told"),
    [
        ("ValueError: bad batch", "ValueError: bad batch"),
        ("bad batch", "ValueError: bad batch"),
        ("", "ValueError: "),
        ("ValueError: \nTraceback (most recent call last):\n  File", "ValueError: "),
        ("ValueError: \n\nNCCL says\nmore", "ValueError: NCCL says"),
        ("ValueError: " + "x" * 9_000, "ValueError: " + "x" * 299 + "…"),
    ],
)
def test_the_kind_of_an_error_is_said_once(message: str, told: str) -> None:
    """A traceback's last line begins with it already."""
    exited = WorkerExited(rank=1, exit_code=1, error_type="ValueError", error_message=message)
    assert worker_end(exited, 0, 1) == f"rank 1 on node 0 raised {told}"


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ({}, ""),
        ({"error_message": "the zygote ended\nand more"}, ": the zygote ended"),
        ({"stderr_tail": "Epoch 7"}, ""),
    ],
)
def test_a_signals_cause_is_said_where_it_is_known(fields: dict[str, str], told: str) -> None:
    """The last line of a killed process says nothing of why."""
    exited = WorkerExited(rank=1, exit_code=-9, **fields)  # type: ignore[arg-type]
    assert worker_end(exited, 0, 1) == f"rank 1 on node 0 was ended by signal 9 (SIGKILL){told}"


def test_an_exit_code_is_explained_by_the_last_line() -> None:
    """Programs that are not Python say there why they end."""
    exited = WorkerExited(rank=1, exit_code=4, stderr_tail="first\nno such file\n")
    assert worker_end(exited, 0, 1) == "rank 1 on node 0 ended with exit code 4: no such file"


def test_one_thing_is_no_plural() -> None:
    """Numbers, lists of nodes and windows read as people say them."""
    assert [counted(number, "node") for number in (0, 1, 2)] == ["0 nodes", "1 node", "2 nodes"]
    assert counted(1, "process", "processes") == "1 process"
    assert counted(3, "process", "processes") == "3 processes"
    assert [nodes_named([4]), nodes_named([2, 4])] == ["node 4", "nodes 2, 4"]
    assert [period(86400), period(3600), period(50)] == ["a day", "an hour", "50 s"]


@pytest.mark.parametrize(
    ("reason", "told"), [("Killed", ""), ("", ""), ("OOMKilled", " (OOMKilled)")]
)
def test_a_reason_that_the_signal_tells_is_not_said_again(reason: str, told: str) -> None:
    """What says more stays."""
    pod = PodObservation(
        name="w-1", node_rank=1, phase=PodPhase.FAILED, exit_code=-9, reason=reason
    )
    assert pod_end(pod) == f"w-1 of node 1 was ended by signal 9 (SIGKILL){told}"
