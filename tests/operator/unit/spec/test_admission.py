"""The front door: which documents count, what a person is told, and that nothing gets past it."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast_operator.spec.admission import read_job
from holdfast_operator.spec.problems import InvalidJobError, ProblemKind
from jobs.job_files import CRD, faults_of, fields_of, job, problems_of, read

HEAD = "apiVersion: holdfast.dev/v1alpha1\nkind: ElasticJob\n"
GOOD = f"""{HEAD}metadata: {{name: gpt, namespace: team-a}}
spec:
  replicas: 4
  minReplicas: 2
  worker:
    template:
      spec:
        containers:
        - name: worker
          command: [holdfast-run, train.py, --lr=3e-4]
"""
BAD = f"""{HEAD}metadata: {{name: gpt, lables: {{}}, labels: {{a: 1}}}}
spec:
  replicas: "4"
  minReplica: 2
  standbys: 1
  nprocPerNode: tpu
  maxReplicas:
  worker:
    template: {{}}
  failurePolicy:
    rules:
    - action: failjob
      onLogPattern: "("
  health: {{hang: {{mode: off}}}}
  cleanup: [All]
"""

TOLD = """
line 3: metadata.lables: is not a known field; did you mean labels?
line 3: metadata.labels.a: 1 is a number, not a text; write it in quotes
line 5: spec.replicas: "4" is a text, not a whole number; write 4 without quotes
line 6: spec.minReplica: is not a known field; did you mean minReplicas?
line 7: spec.standbys: is not a known field; it belongs in spec.worker
line 8: spec.nprocPerNode: "tpu" is refused: nprocPerNode must be a number from 1 to 1024, \
or one of auto, gpu, cpu
line 11: spec.worker.template.spec: must be set; set it: A core/v1 PodSpec, passed through as it \
is. restartPolicy is always Never; hostname and subdomain are set by the operator.
line 14: spec.failurePolicy.rules[0].action: "failjob" is not one of the choices; use one of \
Ignore, RestartInPlace, ReplacePod, ReplaceOnOtherNode, FailJob (did you mean FailJob?)
line 15: spec.failurePolicy.rules[0].onLogPattern: "(" is not a regular expression (RE2): \
missing ): (; correct it; the syntax is RE2's, without look-around and back-references
line 16: spec.health.hang.mode: off is a boolean, not a text; YAML reads an unquoted yes, no, \
on, off, true or false as a boolean; use one of Disabled, Report, Act
line 17: spec.cleanup: (a list of 1) is a list, not a mapping of fields; use a mapping of fields
""".strip().splitlines()


def test_a_good_file_gives_the_job_with_its_defaults() -> None:
    """Name, namespace and every default are there; a missing namespace is `default`."""
    found = read_job(GOOD, CRD)
    assert (found.name, found.namespace) == ("gpt", "team-a")
    assert found.body["spec"]["cleanup"] == {"pods": "Running"}
    assert found.notices == ()
    assert read(job()).namespace == "default"


def test_every_fault_of_a_file_is_told_in_its_order() -> None:
    """A person mends a file once, not fault by fault; each says where, what and what instead."""
    assert [str(problem) for problem in problems_of(BAD)] == TOLD


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "the file is empty"),
        ("# only a comment", "the file is empty"),
        ("apiVersion: v1\nkind: Secret", "there is no ElasticJob in it, only Secret"),
        (f"{GOOD}---\n{GOOD}", "line 14: there are 2 objects of kind ElasticJob"),
    ],
)
def test_a_file_without_exactly_one_job_is_refused(text: str, said: str) -> None:
    """The file says which job is meant, or it is no job file."""
    (problem,) = problems_of(text)
    assert said in str(problem)
    assert "apiVersion holdfast.dev/v1alpha1, kind ElasticJob" in problem.remedy


def test_objects_of_other_apis_are_left_out_with_a_notice() -> None:
    """One file may hold what a job needs in a cluster; that is no fault without one."""
    found = read_job(f"apiVersion: v1\nkind: Secret\n---\n{GOOD}", CRD)
    assert found.name == "gpt"
    assert found.notices == ("Secret on line 1 is not used: only a cluster knows it",)


@pytest.mark.parametrize(
    ("head", "fields"),
    [
        ("kind: ElasticJob", ["apiVersion"]),
        ("apiVersion: holdfast.dev/v1alpha1", ["kind"]),
        ("apiVersion: holdfast.dev/v1\nkind: ElasticJob", ["apiVersion"]),
        ("apiVersion: holdfast.dev/v1alpha1\nkind: ElasticJobs", ["kind"]),
        ("apiVersion: holdfst.dev/v1alpha1\nkind: elasticjob", ["apiVersion", "kind"]),
        ("apiVersion: elastic.iml.github.io/v1alpha1\nkind: ElasticJob", ["apiVersion"]),
        ("apiVersion: 1\nkind: []", ["apiVersion", "kind"]),
    ],
)
def test_a_misspelt_kind_or_version_is_a_fault(head: str, fields: list[str]) -> None:
    """A near miss of an ElasticJob is not passed over as somebody else's object."""
    problems = problems_of(GOOD.replace(HEAD, head + "\n"))
    assert fields_of(problems) == fields


def test_a_status_in_a_file_is_ignored() -> None:
    """Output of `kubectl get -o yaml` can be run. Its status is ignored, as by the API server."""
    body = job()
    body["status"] = {"phase": 7, "nonsense": True}
    body["metadata"] |= {"uid": "u", "resourceVersion": "1", "creationTimestamp": None}
    assert read(body).body.get("status") is None


def test_empty_fields_count_as_absent() -> None:
    """A field that is there but empty gets its default, as the API server does it."""
    found = read(job(minReplicas=None, cleanup=None, elasticPolicy={"scaler": None}))
    assert found.spec.min_replicas is None
    assert found.spec.cleanup.pods.value == "Running"


@pytest.mark.parametrize(
    ("metadata", "field"),
    [
        ({}, "metadata.name"),
        ({"name": None}, "metadata.name"),
        ({"name": 5}, "metadata.name"),
        ({"generateName": "a-"}, "metadata.name"),
        ({"name": "a", "namespace": "A"}, "metadata.namespace"),
        ({"name": "a", "labels": {"x": "a b"}}, "metadata.labels.x"),
        ({"name": "a", "annotations": {"x.y/z": 1}}, 'metadata.annotations["x.y/z"]'),
        ({"name": "a", "finalizers": ["f", "f"]}, "metadata.finalizers[1]"),
        ("a", "metadata"),
        (None, "metadata"),
    ],
)
def test_wrong_metadata_is_refused(metadata: Any, field: str) -> None:
    """The local check refuses the metadata that the API server would refuse."""
    body = {**job(), "metadata": metadata}
    assert fields_of(problems_of(json.dumps(body))) == [field]


@pytest.mark.parametrize(
    "fields",
    [
        {"worker__template__metadata": {"labels": {"holdfast.dev/x": "y"}}},
        {"worker__standbys": 2},
        {"podTemplateOverrides": [{"manager": "m", "tolerations": [{"operator": "Exists"}]}]},
    ],
)
def test_fields_inside_preserved_parts_pass(fields: dict[str, Any]) -> None:
    """The local check does not look into parts that the schema preserves."""
    assert faults_of(job(**fields)) == []


def test_a_rule_about_a_field_that_cannot_be_read_says_nothing() -> None:
    """One fault, one problem: a misspelt or mistyped field is not also blamed by a relation."""
    misspelt = job(replicas=5, nodeUnit=2, minReplicaz=4)
    assert fields_of(problems_of(json.dumps(misspelt))) == ["spec.minReplicaz"]
    mistyped = job(minReplicas="5", maxReplicas=3)
    assert fields_of(problems_of(json.dumps(mistyped))) == ["spec.minReplicas", "spec.replicas"]


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner),
    max_leaves=8,
)


def _places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    children = list(value.items()) if isinstance(value, dict) else []
    children += list(enumerate(value)) if isinstance(value, list) else []
    found = [place for step, child in children for place in _places(child, (*path, step))]
    return [path, *found] if path else found


WHOLE = dict(
    read(
        job(
            failurePolicy__rules=[
                {"action": "FailJob", "onExitCodes": {"operator": "In", "values": [1]}}
            ],
            extraRoles=[{"name": "e", "template": {"spec": {"containers": [{"name": "c"}]}}}],
        )
    ).body
)
PLACES = _places(WHOLE)


@settings(max_examples=60, deadline=None)
@given(place=st.sampled_from(PLACES), value=VALUES)
def test_whatever_stands_in_a_field_is_accepted_or_refused(
    place: tuple[Any, ...], value: Any
) -> None:
    """No value in any place leads to anything but a job or a list of problems with fields."""
    body = json.loads(json.dumps(WHOLE))
    inside = body
    for step in place[:-1]:
        inside = inside[step]
    inside[place[-1]] = value
    for problem in problems_of(json.dumps(body)):
        assert problem.fault
        assert str(problem)


@settings(max_examples=150, deadline=None)
@given(text=st.text() | st.lists(st.sampled_from(list("{}[]:,-&*!|>'\"%#~ \n\tabk0"))).map("".join))
def test_whatever_a_file_holds_is_accepted_or_refused(text: str) -> None:
    """No text leads to anything but a job or a list of problems."""
    for problem in problems_of(text):
        assert problem.kind in ProblemKind
        assert str(problem)


def test_checking_a_job_takes_less_than_half_a_second() -> None:
    """CPU time of one check, once the rules are compiled: a hundredth of a second or two."""
    read_job(GOOD, CRD)
    began = time.process_time()
    read_job(GOOD, CRD)
    assert time.process_time() - began < 0.5


def test_the_error_reads_as_one_line_per_fault() -> None:
    """Each line begins with the file's name, so that it can be clicked on."""
    with pytest.raises(InvalidJobError) as caught:
        read_job(BAD, CRD, "jobs/gpt.yaml")
    lines = str(caught.value).splitlines()
    assert len(lines) == len(caught.value.problems)
    assert all(line.startswith("jobs/gpt.yaml: line ") for line in lines)
