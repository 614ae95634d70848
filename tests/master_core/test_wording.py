"""What befell a process, in the words that events, conditions and commands repeat."""

from __future__ import annotations

import pytest

from holdfast_master.job.wording import worker_end
from holdfast_wire.messages import WorkerExited


@pytest.mark.parametrize(
    ("message", "told"),
    [
        ("ValueError: bad batch", "ValueError: bad batch"),
        ("bad batch", "ValueError: bad batch"),
        ("", "ValueError: "),
    ],
)
def test_the_kind_of_an_error_is_said_once(message: str, told: str) -> None:
    """A traceback's last line begins with it already."""
    exited = WorkerExited(rank=1, exit_code=1, error_type="ValueError", error_message=message)
    assert worker_end(exited, 0, 1) == f"rank 1 on node 0 raised {told}"
