"""Success of a job, by its policy."""

from __future__ import annotations

import pytest

from holdfast_master.job.requests.job_end import judge_success
from holdfast_wire.messages import SuccessPolicy

ALL, ANY, FIRST = SuccessPolicy.ALL_WORKERS, SuccessPolicy.ANY_WORKER, SuccessPolicy.RANK0

TABLE = [
    (ALL, 4, 3, True, False),
    (ALL, 4, 4, True, True),
    (ALL, 0, 0, False, False),
    (SuccessPolicy.UNSPECIFIED, 4, 4, True, True),
    (SuccessPolicy.UNSPECIFIED, 4, 1, True, False),
    (ANY, 4, 0, False, False),
    (ANY, 4, 1, False, True),
    (FIRST, 4, 3, False, False),
    (FIRST, 4, 1, True, True),
]


@pytest.mark.parametrize(("policy", "size", "done", "rank0", "met"), TABLE)
def test_policies(*, policy: SuccessPolicy, size: int, done: int, rank0: bool, met: bool) -> None:
    """The policy decides whose exit code 0 counts."""
    met_now, reason = judge_success(policy, size, done, rank0=rank0)
    assert met_now is met
    assert "finished" in reason
