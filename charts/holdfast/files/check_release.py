"""Questions of `helm test`: is an operator ready and alive, does the API server judge ElasticJobs?

Runs in the operator's image, with Python's own library only. Makes nothing: jobs are dry runs.
"""
# ruff: noqa: INP001

from __future__ import annotations

import json
import os
import ssl
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
DEADLINE_SECONDS = 40.0
"""Longer than a Lease lasts: an operator may have been lost a moment ago."""
PAUSE_SECONDS = 1.0
Check = Callable[[], str]
"""Returns what stands against something; empty: nothing."""


def ask(path: str, body: Any = None) -> tuple[int, Any]:
    """Return code and object of the API server's answer; raises OSError where there is none."""
    host, port = (os.environ[f"KUBERNETES_SERVICE_{part}"] for part in ("HOST", "PORT"))
    url = f"https://{f'[{host}]' if ':' in host else host}:{port}{path}"
    token = (ACCOUNT / "token").read_text()
    headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data, headers)
    trust = ssl.create_default_context(cafile=str(ACCOUNT / "ca.crt"))
    try:
        with urllib.request.urlopen(request, context=trust, timeout=10) as answer:  # noqa: S310
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as error:
        return error.code, json.load(error)


def until(what: str, check: Check) -> None:
    """Wait until nothing stands against it; at the deadline end with what does."""
    end = time.monotonic() + DEADLINE_SECONDS
    while True:
        try:
            fault = check()
        except OSError as error:
            fault = f"the API server gave no answer: {error}"
        if not fault:
            break
        if time.monotonic() > end:
            sys.exit(f"FAILED: {what}: {fault}")
        time.sleep(PAUSE_SECONDS)
    sys.stdout.write(f"ok: {what}\n")
    sys.stdout.flush()


def is_ready(home: str, name: str) -> Check:
    """Return the check that a replica of a Deployment is ready."""

    def check() -> str:
        code, found = ask(f"/apis/apps/v1/namespaces/{home}/deployments/{name}")
        ready = (found.get("status") or {}).get("readyReplicas")
        return "" if ready else f"Deployment {name} has no ready replica ({code})"

    return check


def leads(home: str, name: str) -> Check:
    """Return the check that a Lease has a holder, who renews it while it is looked at."""
    seen: list[tuple[Any, Any]] = []

    def check() -> str:
        code, found = ask(f"/apis/coordination.k8s.io/v1/namespaces/{home}/leases/{name}")
        spec = found.get("spec") or {}
        seen.append((spec.get("holderIdentity"), spec.get("renewTime")))
        renewed = seen[-1][0] and seen[-1] != seen[0]
        return "" if renewed else f"Lease {name} is not renewed ({code}): {seen[-1]}"

    return check


def judged(where: str, expected: int, **size: int) -> Check:
    """Return the check that a job of this size is answered with a code."""
    worker = {"template": {"spec": {"containers": [{"name": "worker", "image": "none"}]}}}
    job = {
        "apiVersion": "holdfast.dev/v1alpha1",
        "kind": "ElasticJob",
        "metadata": {"generateName": "release-test-"},
        "spec": {"worker": worker, **size},
    }

    def check() -> str:
        path = f"/apis/holdfast.dev/v1alpha1/namespaces/{where}/elasticjobs?dryRun=All"
        code, found = ask(path, job)
        return "" if code == expected else f"{code}: {found.get('message')}"

    return check


def main() -> None:
    """Ask one after another; end with 1 at the first that fails."""
    home, name, jobs = (os.environ[one] for one in ("HOME_NAMESPACE", "OPERATOR", "JOBS_IN"))
    until("a replica of the operator is ready", is_ready(home, name))
    until("one of them leads", leads(home, name))
    until("the API server takes an ElasticJob", judged(jobs, 201, replicas=1))
    until("and refuses one that cannot be", judged(jobs, 422, replicas=1, minReplicas=2))


if __name__ == "__main__":
    main()
