"""Fields that this version lacks are refused by name where they are asked for."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast_operator.spec.admission import not_supported, whole_schema
from holdfast_operator.spec.availability import NOT_BUILT, describe
from holdfast_operator.spec.problems import ProblemKind
from holdfast_operator.spec.schema import parse_crd, with_defaults
from holdfast_wire.messages import HealthMode
from jobs.job_files import CRD, faults_of, fields_of, job, read


def _unavailable(body: dict[str, Any]) -> list[str]:
    found = faults_of(body, built=[ProblemKind.UNAVAILABLE])
    return fields_of(one for one in found if one.kind is ProblemKind.UNAVAILABLE)


@pytest.mark.parametrize(
    ("fields", "refused"),
    [
        ({"elasticPolicy__scaler": "Master"}, "spec.elasticPolicy.scaler"),
        ({"checkpoint__path": "s3://b/x"}, "spec.checkpoint.path"),
        ({"checkpoint__path": "gs://b/x"}, "spec.checkpoint.path"),
        ({"checkpoint__path": "file:///x"}, "spec.checkpoint.path"),
        ({"checkpoint__memory__copies": 1}, "spec.checkpoint.memory.copies"),
        ({"checkpoint__onSuspend": False}, "spec.checkpoint.onSuspend"),
        ({"podTemplateOverrides": [{"manager": "m"}]}, "spec.podTemplateOverrides"),
    ],
)
def test_a_field_of_a_missing_feature_is_refused(fields: dict[str, Any], refused: str) -> None:
    """Asking for what is not there is a fault, not something that silently does nothing."""
    assert _unavailable(job(**fields)) == [refused]


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"elasticPolicy__scaler": "External"},
        {"health__preflight": {"mode": "Disabled", "networkCheck": True}},
        {"health__preflight": {"mode": "Act", "networkCheck": False, "timeoutSeconds": 60}},
        {"health__preflight": {"mode": "Report"}},
        {"health__hang": {"mode": "Report", "minSeconds": 60}},
        {"health__straggler": {"mode": "Disabled", "votes": 3}},
        {"health__straggler__mode": "Act"},
        {"health__hang__mode": "Act"},
        {"checkpoint": {"memory": {"interval": "Auto", "copies": 0}, "onSuspend": True}},
        {"checkpoint": {}},
        {"checkpoint": {"memory": {"interval": 5}, "storage": {"interval": 100}}},
        {"checkpoint": {"path": "/x", "onDelete": True, "onDeleteTimeoutSeconds": 9}},
        {"checkpoint": {"storage": {"keepLast": 9, "keepEverySteps": 1000}}},
        {"scheduling__gang": {"backend": "Coscheduling", "timeoutSeconds": 5}},
        {"scheduling__topology__key": "zone"},
        {"checkpoint__path": "/x:/y"},
        {"podTemplateOverrides": []},
        {
            "failurePolicy__rules": [
                {"action": "ReplaceOnOtherNode", "onPodConditions": [{"type": "DiskPressure"}]}
            ]
        },
    ],
)
def test_what_asks_for_nothing_is_accepted(fields: dict[str, Any]) -> None:
    """Defaults that are written down, and modes that are there, are no fault."""
    assert _unavailable(job(**fields)) == []


@pytest.mark.parametrize(
    ("fields", "refused"),
    [
        ({}, []),
        ({"health__preflight__mode": "Act", "health__hang__mode": "Act"}, []),
        ({"checkpoint": {"path": "/x", "onDelete": True, "onDeleteTimeoutSeconds": 9}}, []),
        ({"checkpoint__path": "s3://b/x"}, ["spec.checkpoint.path"]),
        ({"checkpoint__memory__copies": 1}, ["spec.checkpoint.memory.copies"]),
        (
            {"checkpoint__onSuspend": False, "elasticPolicy__scaler": "Master"},
            ["spec.elasticPolicy.scaler", "spec.checkpoint.onSuspend"],
        ),
        ({"podTemplateOverrides": [{"manager": "m"}]}, ["spec.podTemplateOverrides"]),
    ],
)
def test_a_cluster_refuses_the_same(fields: dict[str, Any], refused: list[str]) -> None:
    """The API server has filled in the defaults: they ask for nothing, what is written does."""
    body = with_defaults(job(**fields), whole_schema(parse_crd(CRD)))
    found = not_supported(body, CRD)
    assert fields_of(found) == refused
    assert all(one.value and one.fault and one.remedy for one in found)


def test_a_field_that_is_wrong_anyway_is_told_once() -> None:
    """Nobody needs to hear that a value is wrong and that its feature is missing."""
    assert fields_of(faults_of(job(checkpoint__path=""), built=ProblemKind)) == [
        "spec.checkpoint.path"
    ]


def test_by_default_what_is_missing_is_off() -> None:
    """A job without health settings gets the CRD's defaults."""
    health = read(job()).spec.health
    modes = (health.preflight, health.hang, health.straggler)
    assert tuple(one.mode for one in modes if one is not None) == (
        HealthMode.DISABLED,
        HealthMode.REPORT,
        HealthMode.REPORT,
    )
    kept = read(job(health__hang__mode="Disabled", health__straggler__mode="Disabled")).spec.health
    assert kept.hang is not None
    assert kept.straggler is not None
    assert (kept.hang.mode, kept.straggler.mode) == (HealthMode.DISABLED, HealthMode.DISABLED)


@pytest.mark.parametrize("row", NOT_BUILT, ids=[row.path for row in NOT_BUILT])
def test_every_row_is_about_a_field_of_the_crd(row: Any) -> None:
    """A row whose field was renamed would refuse nothing."""
    node = parse_crd(CRD).schema
    for step in row.steps:
        node = node.properties[step]
    assert not node.choices or set(row.allowed) <= set(node.choices)
    assert not node.has_default or row.allows(node.default, node.default)
    assert row.remedy
    assert describe(row.path) == row.feature


def test_a_field_that_is_there_is_described_as_such() -> None:
    """The reference page marks only what is missing."""
    assert describe("replicas") is None
    assert describe("checkpoint.memory.copies") == "copies of checkpoints on other nodes"
    assert describe("checkpoint.onDelete") is None
    assert describe("checkpoint.storage.interval") is None
