"""The CRD's own rules, each with an object that it accepts and one that it refuses.

The same cases were shown to a real API server, which answered the same.
"""

from __future__ import annotations

from typing import Any

import pytest

from holdfast_operator.spec.admission import change_job, check_update, from_object
from holdfast_operator.spec.problems import InvalidJobError
from holdfast_operator.spec.schema import Rule, parse_crd, walk
from job_files import CRD, TEMPLATE, faults_of, fields_of, job, read

EXIT = {"operator": "In", "values": [2, 126]}


def _rule(**matchers: Any) -> dict[str, Any]:
    return job(failurePolicy__rules=[{"action": "FailJob", **matchers}])


ACCEPTED = {
    "the shortest job": job(),
    "a name of 45 characters": job("a" * 45),
    "minReplicas equal to replicas": job(minReplicas=4),
    "maxReplicas equal to replicas": job(maxReplicas=4),
    "nodeUnit equal to maxReplicas": job(minReplicas=8, replicas=8, maxReplicas=8, nodeUnit=8),
    "nodeUnit that divides replicas": job(nodeUnit=2),
    "replicas between two multiples": job(replicas=5, minReplicas=4, maxReplicas=8, nodeUnit=2),
    "nprocPerNode auto": job(nprocPerNode="auto"),
    "nprocPerNode gpu": job(nprocPerNode="gpu"),
    "nprocPerNode cpu": job(nprocPerNode="cpu"),
    "nprocPerNode 1": job(nprocPerNode=1),
    "nprocPerNode 1024": job(nprocPerNode=1024),
    "another manager": job(managedBy="kueue.x-k8s.io/multikueue"),
    "a rule on exit codes of a container": _rule(onExitCodes={"containerName": "worker", **EXIT}),
    "a rule on exit codes other than 0": _rule(onExitCodes={"operator": "NotIn", "values": [0]}),
    "a rule on a pod condition": _rule(onPodConditions=[{"type": "DisruptionTarget"}]),
    "a rule on a log pattern": _rule(onLogPattern="CUDA error"),
    "votes equal to votesOutOf": job(health__straggler={"votes": 5, "votesOutOf": 5}),
    "a checkpoint at deletion with a path": job(checkpoint={"onDelete": True, "path": "/x"}),
    "a checkpoint interval of Auto": job(checkpoint__memory__interval="Auto"),
    "a checkpoint interval of 1": job(checkpoint__storage__interval=1),
    "a journal on a claim": job(
        master__journal={"mode": "PersistentVolumeClaim", "claimName": "x"}
    ),
    "an extra role": job(extraRoles=[{"name": "eval", "template": TEMPLATE}]),
    "an override for the workers": job(podTemplateOverrides=[{"manager": "m"}]),
    "an override for the master": job(podTemplateOverrides=[{"manager": "m", "role": "master"}]),
    "an override for an extra role": job(
        extraRoles=[{"name": "eval", "template": TEMPLATE}],
        podTemplateOverrides=[{"manager": "m", "role": "eval"}],
    ),
    "the same manager for two roles": job(
        podTemplateOverrides=[{"manager": "m"}, {"manager": "m", "role": "master"}]
    ),
    "an unknown field inside a pod": job(
        worker__template__spec={"containers": [{"name": "w", "imagee": "x"}], "foo": 1}
    ),
}
REFUSED = {
    "a name of 46 characters": (job("a" * 46), ["metadata.name"]),
    "a name that starts with a digit": (job("1a"), ["metadata.name"]),
    "a name with a dot": (job("a.b"), ["metadata.name"]),
    "a name that ends with a dash": (job("a-"), ["metadata.name"]),
    "minReplicas above replicas": (job(minReplicas=5), ["spec.replicas"]),
    "maxReplicas below replicas": (job(maxReplicas=3), ["spec.replicas"]),
    "minReplicas above maxReplicas": (
        job(minReplicas=9, maxReplicas=3, replicas=5),
        ["spec.replicas", "spec.replicas", "spec.minReplicas"],
    ),
    "nodeUnit above replicas": (job(nodeUnit=5), ["spec.nodeUnit", "spec.replicas"]),
    "nodeUnit that does not divide replicas": (job(nodeUnit=3), ["spec.replicas"]),
    "nodeUnit that does not divide minReplicas": (
        job(minReplicas=3, nodeUnit=2),
        ["spec.minReplicas"],
    ),
    "nodeUnit that does not divide maxReplicas": (
        job(maxReplicas=5, nodeUnit=2),
        ["spec.maxReplicas"],
    ),
    "replicas 0": (job(replicas=0), ["spec.replicas"]),
    "nprocPerNode 0": (job(nprocPerNode=0), ["spec.nprocPerNode"]),
    "nprocPerNode tpu": (job(nprocPerNode="tpu"), ["spec.nprocPerNode"]),
    "nprocPerNode 8 as a text": (job(nprocPerNode="8"), ["spec.nprocPerNode"]),
    "nprocPerNode 1025": (job(nprocPerNode=1025), ["spec.nprocPerNode"]),
    "a manager without a domain": (job(managedBy="foo"), ["spec.managedBy"]),
    "a rule with two matchers": (
        _rule(onLogPattern="x", onExitCodes=EXIT),
        ["spec.failurePolicy.rules[0]"],
    ),
    "a rule without a matcher": (_rule(), ["spec.failurePolicy.rules[0]"]),
    "a rule that fails at success": (
        _rule(onExitCodes={"operator": "In", "values": [0]}),
        ["spec.failurePolicy.rules[0].onExitCodes.values"],
    ),
    "a rule with the same code twice": (
        _rule(onExitCodes={"operator": "In", "values": [1, 1]}),
        ["spec.failurePolicy.rules[0].onExitCodes.values[1]"],
    ),
    "a rule on an unknown container": (
        _rule(onExitCodes={"containerName": "nope", **EXIT}),
        ["spec.failurePolicy.rules"],
    ),
    "more votes than verdicts": (
        job(health__straggler={"votes": 6}),
        ["spec.health.straggler.votes"],
    ),
    "a checkpoint at deletion without a path": (
        job(checkpoint__onDelete=True),
        ["spec.checkpoint.onDelete"],
    ),
    "a checkpoint interval of 0": (
        job(checkpoint__memory__interval=0),
        ["spec.checkpoint.memory.interval"],
    ),
    "a checkpoint interval with a unit": (
        job(checkpoint__storage__interval="5m"),
        ["spec.checkpoint.storage.interval"],
    ),
    "a journal on no claim": (
        job(master__journal={"mode": "PersistentVolumeClaim"}),
        ["spec.master.journal.claimName"],
    ),
    "a claim without a journal on it": (
        job(master__journal={"claimName": "x"}),
        ["spec.master.journal.claimName"],
    ),
    "an extra role named worker": (
        job(extraRoles=[{"name": "worker", "template": TEMPLATE}]),
        ["spec.extraRoles[0].name"],
    ),
    "two extra roles of one name": (
        job(extraRoles=[{"name": "e", "template": TEMPLATE}] * 2),
        ["spec.extraRoles[1]"],
    ),
    "an override for an unknown role": (
        job(podTemplateOverrides=[{"manager": "m", "role": "evaluator"}]),
        ["spec.podTemplateOverrides"],
    ),
    "the same manager for one role": (
        job(podTemplateOverrides=[{"manager": "m"}, {"manager": "m", "role": "worker"}]),
        ["spec.podTemplateOverrides[1]"],
    ),
    "no containers": (
        job(worker={"template": {"spec": {"containers": []}}}),
        ["spec.worker.template.spec.containers"],
    ),
    "no worker": ({**job(), "spec": {"replicas": 1}}, ["spec.worker"]),
    "a mode that YAML read as false": (job(health__hang__mode=False), ["spec.health.hang.mode"]),
    "an unknown field": (job(relpicas=3), ["spec.relpicas"]),
    "an unknown field inside a group": (job(health__hang__mod="Act"), ["spec.health.hang.mod"]),
}


@pytest.mark.parametrize("case", ACCEPTED)
def test_an_object_that_keeps_the_rules_is_accepted(case: str) -> None:
    """What the API server accepts, the local check accepts."""
    assert faults_of(ACCEPTED[case]) == []


@pytest.mark.parametrize("case", REFUSED)
def test_an_object_that_breaks_a_rule_is_refused_by_its_field(case: str) -> None:
    """Every rule that is broken is reported, each once and at the field that is to blame."""
    body, fields = REFUSED[case]
    assert sorted(fields_of(faults_of(body))) == sorted(fields)


def _words_of(rule: Rule) -> str:
    """What of a rule's message is there whatever the values are."""
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
    assert len(rules) == 22
    assert unbroken == []


def test_a_message_carries_the_values() -> None:
    """Where the rule makes its own message, the values of both fields are in it."""
    (problem,) = faults_of(job(minReplicas=5))
    assert str(problem) == (
        "line 1: spec.replicas: 4 is refused: replicas 4 is below minReplicas 5: lower "
        "minReplicas first, or remove it so that it follows replicas"
    )


ROLES = [{"name": "eval", "template": TEMPLATE}, {"name": "ps", "template": TEMPLATE}]


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
        pytest.param({"replicas": 1}, "spec.replicas", id="scaled below the minimum"),
        pytest.param({"replicas": 9}, "spec.replicas", id="scaled above the maximum"),
    ],
)
def test_a_change_that_is_not_allowed_is_refused(fields: dict[str, Any], blamed: str) -> None:
    """What is immutable, and sizes outside the bounds, are refused by their field."""
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
    """Defaults cannot be told from wishes there: what is not built is off, nothing is refused."""
    body = dict(read(job()).body)
    body["spec"] = {**body["spec"], "health": {**body["spec"]["health"], "hang": {"mode": "Act"}}}
    assert from_object(body).spec.health.hang.value == "Report"
    body["spec"]["health"]["hang"] = {"mode": "Disabled"}
    assert from_object(body).spec.health.hang.value == "Disabled"
