"""A job's workers are scheduled together by what the cluster has."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast_operator.pods.gang import (
    AUTO,
    BACKENDS,
    COSCHEDULING,
    NONE,
    UPSTREAM,
    VOLCANO,
    Gang,
    GangBackend,
    choose,
)
from holdfast_operator.pods.names import Owner

_GANG = Gang(
    owner=Owner(name="gpt", namespace="team", uid="u"),
    least=4,
    timeout_s=60,
    priority_class="high",
)


@pytest.mark.parametrize(
    ("wanted", "apis", "found"),
    [
        (NONE, {one.api for one in BACKENDS}, None),
        (AUTO, {one.api for one in BACKENDS}, UPSTREAM),
        (AUTO, {VOLCANO.api}, VOLCANO),
        (AUTO, set(), None),
        ("Coscheduling", {UPSTREAM.api, COSCHEDULING.api}, COSCHEDULING),
    ],
)
def test_a_backend_is_found_by_what_the_cluster_serves(
    wanted: str, apis: set[str], found: GangBackend | None
) -> None:
    """Auto takes the upstream scheduler's first; None takes none."""
    assert choose(wanted, apis) is found


def test_a_backend_that_is_missing_is_named_with_what_is_there() -> None:
    """A person learns what to install or to write."""
    with pytest.raises(LookupError, match=r"Volcano needs PodGroups of .*it has: Upstream"):
        choose("Volcano", {UPSTREAM.api})


@pytest.mark.parametrize(
    ("backend", "spec"),
    [
        (
            UPSTREAM,
            {
                "schedulingPolicy": {"gang": {"minCount": 4}},
                "disruptionMode": {"single": {}},
                "priorityClassName": "high",
            },
        ),
        (COSCHEDULING, {"minMember": 4, "scheduleTimeoutSeconds": 60}),
        (VOLCANO, {"minMember": 4, "priorityClassName": "high"}),
    ],
)
def test_a_group_has_the_least_size(backend: GangBackend, spec: dict[str, object]) -> None:
    """What has to fit at once is minReplicas, whatever the job's size is now."""
    body = backend.body(_GANG)
    assert (body["apiVersion"], body["spec"]) == (backend.api, spec)
    assert body["metadata"]["name"] == "gpt-worker"
    assert body["metadata"]["ownerReferences"][0]["uid"] == "u"


@pytest.mark.parametrize("backend", BACKENDS, ids=lambda one: one.name)
def test_a_pod_names_its_group(backend: GangBackend) -> None:
    """Each scheduler finds the group in its own place; a template's scheduler stays."""
    pod: dict[str, Any] = {"metadata": {"labels": {"a": "b"}}, "spec": {"schedulerName": "mine"}}
    backend.additions(_GANG).apply(pod)
    assert "gpt-worker" in str(pod)
    assert pod["spec"]["schedulerName"] == "mine"
    assert pod["metadata"]["labels"]["a"] == "b"
