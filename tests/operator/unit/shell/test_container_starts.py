"""Containers of a pod that have not started, and the reason, in words."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast_operator.pods.container_starts import not_started

_DONE = {"terminated": {"exitCode": 0}}
_RUNS: dict[str, Any] = {"running": {}}
_INITIALIZES = {"waiting": {"reason": "PodInitializing"}}
_CREATES = {"waiting": {"reason": "ContainerCreating"}}
SPEC: dict[str, Any] = {
    "nodeName": "n1",
    "initContainers": [{"name": "mesh", "restartPolicy": "Always"}, {"name": "fetch"}],
    "containers": [{"name": "logs"}, {"name": "worker"}],
}


def _status(mesh: Any, fetch: Any, worker: Any, *, started: bool = True) -> dict[str, Any]:
    return {
        "initContainerStatuses": [
            {"name": "mesh", "state": mesh, "started": started},
            {"name": "fetch", "state": fetch},
        ],
        "containerStatuses": [{"name": "logs", "state": _CREATES}, {"name": "worker", **worker}],
    }


@pytest.mark.parametrize(
    ("status", "words"),
    [
        (_status(_RUNS, _DONE, {"state": _RUNS}), ""),
        (_status(_RUNS, _DONE, {"state": _DONE}), ""),
        (
            _status(_RUNS, _DONE, {"state": _CREATES}),
            "container worker waits: ContainerCreating",
        ),
        (
            _status(_RUNS, _RUNS, {"state": _INITIALIZES}),
            "init container fetch runs",
        ),
        (
            _status(_RUNS, {"terminated": {"exitCode": 3}}, {"state": _INITIALIZES}),
            "init container fetch ended with exit code 3",
        ),
        (
            _status(_RUNS, _INITIALIZES, {"state": _INITIALIZES}, started=False),
            "init container mesh runs, and its startup probe has not succeeded",
        ),
        (
            _status(
                {"waiting": {"reason": "CrashLoopBackOff", "message": "back-off 10s"}},
                _INITIALIZES,
                {"state": _INITIALIZES},
                started=False,
            ),
            "init container mesh waits: CrashLoopBackOff: back-off 10s",
        ),
        ({}, "init container mesh waits"),
    ],
)
def test_the_first_container_that_has_not_started_is_named(
    status: dict[str, Any], words: str
) -> None:
    """In the order in which a kubelet starts them; side containers hold up nothing."""
    assert not_started(SPEC, status) == words


def test_a_pod_without_a_node_waits_for_one() -> None:
    """None of its containers can start."""
    spec = {name: value for name, value in SPEC.items() if name != "nodeName"}
    assert not_started(spec, {}) == "it has no node yet"
