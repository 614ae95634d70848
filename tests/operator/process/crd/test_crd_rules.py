"""The CRD on a real API server: its rules at their edges, transitions, defaults, and both checks.

The local check (`holdfast_operator.spec`) reads the same file; here the two must agree.
"""

from __future__ import annotations

from typing import Any

import pytest

from cluster.api import Answer
from cluster.control_plane import ControlPlane
from holdfast_operator.spec.admission import whole_schema
from holdfast_operator.spec.schema import parse_crd, walk, with_defaults
from jobs.job_files import CRD, faults_of, job
from jobs.rule_cases import ACCEPTED, REFUSED, ROLES

pytestmark = pytest.mark.kube


def _jobs(namespace: str, name: str = "") -> str:
    return f"/apis/holdfast.dev/v1alpha1/namespaces/{namespace}/elasticjobs" + (name and f"/{name}")


def _try(plane: ControlPlane, namespace: str, body: dict[str, Any]) -> Answer:
    return plane.api.post(f"{_jobs(namespace)}?dryRun=All&fieldValidation=Strict", body)


def test_the_api_server_accepts_what_keeps_the_rules(plane: ControlPlane, namespace: str) -> None:
    """Every object that the local check accepts, a real API server accepts."""
    answers = {case: _try(plane, namespace, body) for case, body in ACCEPTED.items()}
    assert {case: answer.message for case, answer in answers.items() if not answer.ok} == {}


def test_the_api_server_refuses_what_breaks_a_rule(plane: ControlPlane, namespace: str) -> None:
    """Every object that the local check refuses, a real API server refuses, for the same rule."""
    unlike = {}
    for case, (body, _) in REFUSED.items():
        answer = _try(plane, namespace, body)
        # Where the structure is wrong already, the API server evaluates no rule, and says so.
        only_structure = "some validation rules were not checked" in answer.message
        rules = set() if only_structure else {one.fault for one in faults_of(body)} & _messages()
        if answer.code not in {400, 422} or not all(rule in answer.message for rule in rules):
            unlike[case] = (answer.code, answer.message, sorted(rules))
    assert unlike == {}


def test_a_value_out_of_bounds_breaks_no_rule_about_another_field(
    plane: ControlPlane, namespace: str
) -> None:
    """A rule that cannot be evaluated would stand beside the clear words, as one more fault."""
    said = {case: _try(plane, namespace, body).message for case, (body, _) in REFUSED.items()}
    assert {case: text for case, text in said.items() if "evaluating rule" in text} == {}


def _messages() -> set[str]:
    """Messages of the rules that are always the same."""
    nodes = walk(parse_crd(CRD).schema)
    return {rule.message for _, node in nodes for rule in node.rules if not rule.message_expression}


def test_a_message_carries_the_values(plane: ControlPlane, namespace: str) -> None:
    """The refusal of a size out of bounds has both numbers and the remedy in it."""
    answer = _try(plane, namespace, job(minReplicas=5))
    assert (
        "replicas 4 is below minReplicas 5: lower minReplicas first, or remove it so that it "
        "follows replicas"
    ) in answer.message


def test_both_fill_in_the_same_defaults(plane: ControlPlane, namespace: str) -> None:
    """Field by field: what the API server stores is what the local runner works with."""
    schema = whole_schema(parse_crd(CRD))
    unlike = {}
    for case, body in ACCEPTED.items():
        stored = _try(plane, namespace, body).body["spec"]
        local = with_defaults(body, schema)["spec"]
        if stored != local:
            unlike[case] = {
                name: (stored.get(name), local.get(name))
                for name in {*stored, *local}
                if stored.get(name) != local.get(name)
            }
    assert unlike == {}


@pytest.fixture
def running(plane: ControlPlane, namespace: str) -> str:
    """The address of a job that can be scaled from 2 to 8 and has two extra roles."""
    body = job("tr", minReplicas=2, maxReplicas=8, extraRoles=ROLES)
    answer = plane.api.post(_jobs(namespace), body)
    assert answer.ok, answer.message
    return _jobs(namespace, "tr")


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        pytest.param({"managedBy": "a.b/c"}, "managedBy is immutable", id="managedBy changed"),
        pytest.param({"extraRoles": ROLES[:1]}, "roles cannot be added", id="role removed"),
        pytest.param({"extraRoles": None}, "roles cannot be added", id="all roles removed"),
        pytest.param({"extraRoles": ROLES[::-1]}, "or reordered", id="roles reordered"),
        pytest.param({"master": {"port": 50052}}, "port cannot be changed", id="port changed"),
        pytest.param({"replicas": 1}, "replicas 1 is below minReplicas 2", id="below minimum"),
        pytest.param({"replicas": 9}, "replicas 9 is above maxReplicas 8", id="above maximum"),
    ],
)
def test_a_change_that_is_not_allowed_is_refused(
    plane: ControlPlane, running: str, spec: dict[str, Any], said: str
) -> None:
    """Edits of immutable fields and sizes outside the bounds are refused with a human message."""
    answer = plane.api.merge(running, {"spec": spec})
    assert answer.code == 422
    assert said in answer.message


@pytest.mark.parametrize(
    "spec",
    [
        pytest.param({"replicas": 2}, id="scaled to the minimum"),
        pytest.param({"replicas": 8}, id="scaled to the maximum"),
        pytest.param({"suspend": True}, id="suspended"),
        pytest.param({"minReplicas": None, "maxReplicas": None}, id="bounds removed"),
        pytest.param({"extraRoles": [{**ROLES[0], "replicas": 2}, ROLES[1]]}, id="role scaled"),
    ],
)
def test_a_change_that_is_allowed_is_accepted(
    plane: ControlPlane, running: str, spec: dict[str, Any]
) -> None:
    """Sizes inside the bounds and the pods of a role may change at any time."""
    answer = plane.api.merge(running, {"spec": spec})
    assert answer.ok, answer.message


def test_a_finished_job_keeps_its_size(plane: ControlPlane, running: str) -> None:
    """Once completionTime is set, size and suspension are fixed; TTL, labels and status are not."""
    ended = {"completionTime": "2026-01-01T00:00:00Z"}
    assert plane.api.merge(f"{running}/status", {"status": ended}).ok
    for spec in ({"replicas": 3}, {"suspend": True}):
        answer = plane.api.merge(running, {"spec": spec})
        assert (answer.code, "finished job cannot be scaled" in answer.message) == (422, True)
    scaled = plane.api.merge(f"{running}/scale", {"spec": {"replicas": 3}})
    assert "finished job cannot be scaled" in scaled.message
    for body in (
        {"spec": {"cleanup": {"ttlSecondsAfterFinished": 5}}},
        {"metadata": {"labels": {"a": "b"}}},
    ):
        answer = plane.api.merge(running, body)
        assert answer.ok, answer.message
    assert plane.api.merge(f"{running}/status", {"status": {"replicas": 1}}).ok


def test_an_unknown_field_of_a_lenient_client_is_dropped_with_a_warning(
    plane: ControlPlane, namespace: str
) -> None:
    """A client that does not ask for strict checks is warned, and the field is not stored."""
    answer = plane.api.post(f"{_jobs(namespace)}?dryRun=All", job(relpicas=3))
    assert answer.ok
    assert "relpicas" not in answer.body["spec"]
    assert any(
        "unknown field" in warning and "spec.relpicas" in warning for warning in answer.warnings
    )
