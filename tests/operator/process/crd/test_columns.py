"""`kubectl get ej` tells the story of a job, and `kubectl logs` what its ranks print."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from cluster.control_plane import ControlPlane
from cluster.jobs import Make, looping
from cluster.kubectl import Kubectl
from cluster.rights import needs_pods

pytestmark = [pytest.mark.kube, pytest.mark.timeout(240), needs_pods]


def _row(kubectl: Kubectl, *more: str) -> dict[str, str]:
    lines = kubectl.run("get", "ej", "gpt", *more).splitlines()
    starts = [lines[0].index(word) for word in lines[0].split()]
    ends = [*starts[1:], None]
    return {lines[0][a:b].strip(): lines[1][a:b].strip() for a, b in zip(starts, ends, strict=True)}


def test_the_columns_follow_the_job(
    plane: ControlPlane, make_job: Make, kubectl: Kubectl, tmp_path: Path
) -> None:
    """Pending, then the world and its step, then how it ended; and the ranks' words in the log."""
    spec: dict[str, Any] = {"maxReplicas": 4, "cleanup__pods": "None"}
    body = looping(tmp_path, "--steps=400", "--step-seconds=0.05", nproc=2, **spec)
    source = tmp_path / "loop.py"
    source.write_text(f"import os\nprint('hello from', os.environ['RANK'])\n{source.read_text()}")
    make_job("gpt").create(body)
    seen = [_row(kubectl)]

    def ended() -> bool:
        seen.append(_row(kubectl))
        return seen[-1]["PHASE"] in {"Succeeded", "Failed"}

    plane.until("the end", ended)
    phases = list(dict.fromkeys(row["PHASE"] for row in seen))
    assert phases[-2:] == ["Running", "Succeeded"], phases
    running = [row for row in seen if row["PHASE"] == "Running"]
    assert "1" in {row["READY"] for row in running}
    steps = [int(row["STEP"]) for row in running]
    assert steps == sorted(steps)
    last = seen[-1]
    assert [last[name] for name in ("REPLICAS", "MIN", "MAX", "ROUND", "STEP", "RESTARTS")] == [
        *("1", "1", "4", "1", "400", "0")
    ]
    printed = kubectl.run("logs", "gpt-worker-0-0")
    assert all(f"hello from {rank}" in printed for rank in range(2))
    assert "REASON" in _row(kubectl, "-o", "wide")
