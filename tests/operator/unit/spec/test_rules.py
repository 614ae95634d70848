"""The CRD's own rules, each with an object that it accepts and one that it refuses.

The same cases are shown to a real API server in tests/operator/process/jobs, which answers the
same.
"""

from __future__ import annotations

from typing import Any

import pytest

from holdfast_operator.spec.admission import (
    change_job,
    check_update,
    from_object,
    whole_schema,
)
from holdfast_operator.spec.problems import InvalidJobError
from holdfast_operator.spec.schema import Rule, parse_crd, walk, with_defaults
from holdfast_wire.messages import HealthMode
from jobs.job_files import CRD, faults_of, fields_of, job, read
from jobs.rule_cases import ACCEPTED, REFUSED, ROLES


@pytest.mark.parametrize("case", ACCEPTED)
def test_an_object_that_keeps_the_rules_is_accepted(case: str) -> None:
    """An object that the API server accepts passes the local check."""
    assert faults_of(ACCEPTED[case]) == []


@pytest.mark.parametrize("case", REFUSED)
def test_an_object_that_breaks_a_rule_is_refused_by_its_field(case: str) -> None:
    """Every rule that is broken is reported, each once and at the field that is to blame."""
    body, fields = REFUSED[case]
    assert sorted(fields_of(faults_of(body))) == sorted(fields)


def _words_of(rule: Rule) -> str:
    """Return the part of a rule's message that no value changes."""
    return rule.message_expression.split("%d")[1] if rule.message_expression else rule.message


def test_the_cases_break_every_rule_of_the_crd() -> None:
    """A rule that is added to the CRD needs an object here that breaks it."""
    rules = [rule for _, node in walk(parse_crd(CRD).schema) for rule in node.rules]
    told = [problem.fault for body, _ in REFUSED.values() for problem in faults_of(body)]
    unbroken = [
        rule.expression
        for rule in rules
        if not rule.about_change and not any(_words_of(rule) in fault for fault in told)
    ]
    assert len(rules) == 29
    assert unbroken == []


def test_a_message_carries_the_values() -> None:
    """A message that the rule makes itself carries the values of both fields."""
    (problem,) = faults_of(job(minReplicas=5))
    assert str(problem) == (
        "line 1: spec.replicas: 4 is refused: replicas 4 is below minReplicas 5: lower "
        "minReplicas first, or remove it so that it follows replicas"
    )


def _running() -> dict[str, Any]:
    return dict(read(job(minReplicas=2, maxReplicas=8, extraRoles=ROLES)).body)


def _changed(**fields: Any) -> dict[str, Any]:
    changed = _running()
    changed["spec"] = {**changed["spec"], **fields}
    return changed


@pytest.mark.parametrize(
    ("fields", "blamed"),
    [
        pytest.param({"managedBy": "a.b/c"}, "spec.managedBy", id="managedBy changed"),
        pytest.param({"extraRoles": ROLES[:1]}, "spec.extraRoles", id="role removed"),
        pytest.param({"extraRoles": []}, "spec.extraRoles", id="all roles removed"),
        pytest.param({"extraRoles": ROLES[::-1]}, "spec.extraRoles", id="roles reordered"),
        pytest.param(
            {"master": {"journal": {"mode": "None"}, "port": 50052}},
            "spec.master.port",
            id="port changed",
        ),
        pytest.param(
            {"replicaPolicy": {"nodesPerReplica": 2}}, "spec.replicaPolicy", id="replicas made"
        ),
        pytest.param(
            {"localSGD": {"replicaNodes": 2}},
            "spec.replicaPolicy",
            id="replicas made under their older name",
        ),
        pytest.param({"replicas": 1}, "spec.replicas", id="scaled below the minimum"),
        pytest.param({"replicas": 9}, "spec.replicas", id="scaled above the maximum"),
    ],
)
def test_a_change_that_is_not_allowed_is_refused(fields: dict[str, Any], blamed: str) -> None:
    """Changes of immutable fields and sizes outside the bounds are refused by their field."""
    problems = check_update(_changed(**fields), _running(), CRD)
    assert fields_of(problems) == [blamed]


@pytest.mark.parametrize(
    "fields",
    [
        pytest.param({"replicas": 2}, id="scaled to the minimum"),
        pytest.param({"replicas": 8}, id="scaled to the maximum"),
        pytest.param({"suspend": True}, id="suspended"),
        pytest.param({"extraRoles": [{**ROLES[0], "replicas": 2}, ROLES[1]]}, id="role scaled"),
    ],
)
def test_a_change_that_is_allowed_is_accepted(fields: dict[str, Any]) -> None:
    """Sizes inside the bounds and the pods of a role may change at any time."""
    assert check_update(_changed(**fields), _running(), CRD) == []


_OLD: dict[str, Any] = {"localSGD": {"replicaNodes": 2}}
_NEW: dict[str, Any] = {"replicaPolicy": {"nodesPerReplica": 2}}


@pytest.mark.parametrize(
    ("before", "after"),
    [
        pytest.param(_OLD, _NEW, id="renamed"),
        pytest.param(_OLD, _OLD | _NEW, id="both"),
        pytest.param(_OLD | _NEW, _NEW, id="the old one deleted"),
        pytest.param(_NEW, _OLD, id="back"),
    ],
)
def test_a_field_of_a_running_job_may_get_its_new_name(
    before: dict[str, Any], after: dict[str, Any]
) -> None:
    """The number of nodes stays, under whichever name; an owner moves a job that trains."""
    assert check_update(read(job(**after)).body, read(job(**before)).body, CRD) == []


@pytest.mark.parametrize("after", [{}, _OLD | {"replicaPolicy": {"nodesPerReplica": 4}}])
def test_a_renamed_field_cannot_get_another_value(after: dict[str, Any]) -> None:
    """The rule looks at the number, and not at the name."""
    before = read(job(**_OLD)).body
    problems = check_update(with_defaults(job(**after), whole_schema(parse_crd(CRD))), before, CRD)
    assert "spec.replicaPolicy" in fields_of(problems)


def test_both_names_of_a_field_with_unlike_values_are_refused() -> None:
    """The message has both fields, both values and the remedy."""
    (problem,) = faults_of(job(**_NEW | {"localSGD": {"replicaNodes": 4}}))
    assert str(problem) == (
        "line 1: spec.localSGD: replicaPolicy.nodesPerReplica is 2, and its older name "
        "localSGD.replicaNodes 4: keep the right number in replicaPolicy, and delete localSGD"
    )


@pytest.mark.parametrize("fields", [{"replicas": 3}, {"suspend": True}])
def test_a_finished_job_cannot_be_scaled_or_suspended(fields: dict[str, Any]) -> None:
    """Once a status has its completionTime, size and suspension are fixed; all else is not."""
    status = {"status": {"completionTime": "2026-01-01T00:00:00Z"}}
    before = {**_running(), **status}
    (problem,) = check_update({**_changed(**fields), **status}, before, CRD)
    assert "finished job cannot be scaled" in problem.fault
    harmless = _changed(cleanup={"pods": "All", "ttlSecondsAfterFinished": 5})
    assert check_update({**harmless, **status}, before, CRD) == []


def test_scaling_a_read_job_gives_a_job_of_the_new_size() -> None:
    """The size that an absent maximum came to follows replicas; the old job is untouched."""
    small = read(job(minReplicas=2))
    large = change_job(small, CRD, replicas=6)
    assert (small.spec.size.desired, small.spec.size.most) == (4, 4)
    assert (large.spec.size.least, large.spec.size.desired, large.spec.size.most) == (2, 6, 6)
    assert change_job(large, CRD, suspend=True).spec.suspend


@pytest.mark.parametrize(
    ("replicas", "said"),
    [
        pytest.param(1, "replicas 1 is below minReplicas 2", id="below the minimum"),
        pytest.param(9, "replicas 9 is above maxReplicas 8", id="above the maximum"),
        pytest.param(0, "below the minimum 1", id="none"),
        pytest.param(10_001, "above the maximum 10000", id="too many"),
        pytest.param(1 << 70, "above the maximum 10000", id="more than 64 bits"),
    ],
)
def test_scaling_out_of_bounds_is_refused_with_the_reason(replicas: int, said: str) -> None:
    """A refused size names the bound that it breaks."""
    with pytest.raises(InvalidJobError, match=said):
        change_job(read(job(minReplicas=2, maxReplicas=8)), CRD, replicas=replicas)


def test_scaling_a_finished_job_is_refused() -> None:
    """The rule about finished jobs holds for a local scale command, too."""
    status = {"completionTime": "2026-01-01T00:00:00Z"}
    with pytest.raises(InvalidJobError, match="finished job"):
        change_job(read(job()), CRD, replicas=2, status=status)


def test_an_object_of_the_api_server_is_taken_as_it_is() -> None:
    """An object is read as it is, even with a request for a feature that is not built."""
    body = dict(read(job()).body)
    hang = body["spec"]["health"]["hang"]
    for mode in (HealthMode.ACT, HealthMode.DISABLED):
        named = {**hang, "mode": mode.name.capitalize()}
        body["spec"] = {**body["spec"], "health": {**body["spec"]["health"], "hang": named}}
        read_back = from_object(body).spec.health.hang
        assert read_back is not None
        assert read_back.mode is mode
