"""Scenarios of elastic replicas (`elastic_jobs`), run by a test in a process of their own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

from local_sgd import elastic_jobs


def start(**scenario: Any) -> subprocess.CompletedProcess[str]:
    """Run a scenario to its end, good or bad."""
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(sys.path),
        "GLOO_SOCKET_IFNAME": "lo",
        "OMP_NUM_THREADS": "1",
        "PYTHONWARNINGS": "ignore",
    }
    return subprocess.run(
        [sys.executable, elastic_jobs.__file__, json.dumps(scenario)],
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
        env=environment,
    )


def run(**scenario: Any) -> dict[str, Any]:
    """Return what the control plane did, and what each rank wrote down."""
    ended = start(**scenario)
    assert ended.returncode == 0, f"{scenario}: {ended.stderr[-5000:]}"
    told: dict[str, Any] = json.loads(ended.stdout)
    return told
