"""Metrics and spans of a local job: what `holdfast run` serves and prints while a rank dies."""

from __future__ import annotations

import json
import os
import re
import signal
import urllib.request
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from cluster.control_plane import free_port
from jobs.local_job import RunningJob, elastic_job

pytestmark = [pytest.mark.train, pytest.mark.timeout(240)]


def _scraped(port: int) -> dict[str, float]:
    """Return the sum of each metric's samples by name; empty while no master serves any."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
            text = answer.read().decode()
    except OSError:
        return {}
    found: dict[str, float] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            found[sample.name] = found.get(sample.name, 0.0) + sample.value
    return found


def _spans(log: str) -> list[dict[str, Any]]:
    """Return the spans that stand as JSON objects of several lines in a log."""
    return [json.loads(one) for one in re.findall(r"^\{\n.*?^\}$", log, re.DOTALL | re.MULTILINE)]


def test_a_local_job_of_replicas_serves_its_metrics_and_prints_a_span_for_its_recovery(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`--metrics-port` and OTEL_TRACES_EXPORTER=console, as the page says."""
    monkeypatch.setenv("OTEL_TRACES_EXPORTER", "console")
    script = [
        "examples/with_local_sgd/train_elastic.py",
        f"--checkpoint-dir={tmp_path / 'checkpoints'}",
        *("--pause=0.05", "--interval=5", "--steps=1000000"),  # stopped when all has been seen
    ]
    port = free_port()
    policy = {"nodesPerReplica": 1}
    spec = elastic_job("seen", script, replicas=2, maxReplicas=2, replicaPolicy=policy)
    with RunningJob(spec, tmp_path, flags=[f"--metrics-port={port}"]) as job:
        job.wait_for("two replicas", lambda: _scraped(port).get("holdfast_job_replicas") == 2)
        job.wait_for("a sync", lambda: _scraped(port).get("holdfast_job_sync_seconds", 0) > 0)
        os.kill(job.nodes()[1].ranks[0].pid, signal.SIGKILL)
        job.wait_for("its end", lambda: bool(job.goodput().incidents) and job.all_closed())
        [incident] = job.goodput().incidents
        job.wait_for("it", lambda: _scraped(port).get("holdfast_job_incidents_total") == 1)
        stopped = job.cli("stop", job.name)
        assert stopped.returncode == 0, stopped.stderr
        assert job.finish() == 1, job.evidence()  # stopped
        log = (job.home.logs / "master.log").read_text()
    spans = _spans(log)
    [whole] = [one for one in spans if one["name"] == "recovery"]
    assert whole["attributes"]["holdfast.incident"] == incident.id
    inside = {one["name"] for one in spans if one["parent_id"] == whole["context"]["span_id"]}
    assert {"respawn", "restore"} <= inside, spans
