"""Each field of the foreign kinds is mapped, dropped or refused.

The lists in `fields/` are the leaves of the kinds' CustomResourceDefinitions, a pod template being
one leaf: PyTorchJob of kubeflow/trainer at 289f17906, TrainJob and TrainingRuntime at 8c0f5059b (of
TrainingRuntime also `mlPolicy.torch` of releases 2.0 and 2.1), ElasticJob of
intelligent-machine-learning/dlrover at 7c3e96481.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from holdfast_cli.convert import dlrover, pytorchjob, trainjob
from holdfast_cli.convert.rules import Outcome, Rule, find_rule

_LISTS = Path(__file__).parent / "fields"
_KINDS: dict[str, Sequence[Rule]] = {
    "pytorchjob": pytorchjob.FIELDS,
    "trainjob": trainjob.TRAIN_JOB,
    "trainingruntime": trainjob.RUNTIME,
    "dlrover": dlrover.FIELDS,
}
_ROLES = ("worker", "evaluator", "ps", "chief", "dlrover-master")


def _fields(kind: str) -> list[str]:
    given = (_LISTS / f"{kind}.txt").read_text().split()
    if kind != "dlrover":
        return given
    head = "spec.replicaSpecs{}"
    return [
        field.replace(head, f"spec.replicaSpecs.{role}")
        for field in given
        for role in (_ROLES if field.startswith(head) else ("",))
    ]


@pytest.mark.parametrize("kind", _KINDS)
def test_no_field_is_without_a_rule(kind: str) -> None:
    """A field that the schema has and the table does not know would be refused as unknown."""
    fields = _fields(kind)
    assert len(fields) > 25
    assert [field for field in fields if find_rule(field, _KINDS[kind]) is None] == []


@pytest.mark.parametrize("kind", _KINDS)
def test_what_is_left_out_says_why(kind: str) -> None:
    """A dropped or refused field without a reason helps nobody."""
    rules = _KINDS[kind]
    assert [rule.path for rule in rules if not rule.reason] == [
        rule.path for rule in rules if rule.outcome is Outcome.MAPPED
    ]


@pytest.mark.parametrize("kind", _KINDS)
def test_no_rule_is_for_a_field_that_does_not_exist(kind: str) -> None:
    """A rule that no field of the schema needs is a slip of the pen."""
    fields, rules = _fields(kind), _KINDS[kind]
    used = {id(find_rule(field, rules)) for field in fields}
    free = {"apiVersion", "kind", "metadata", "status"}
    assert [r.path for r in rules if id(r) not in used and r.path not in free] == []


@pytest.mark.parametrize("kind", _KINDS)
def test_no_rule_hides_another(kind: str) -> None:
    """A rule holds for all fields below it, so one below it would never be looked at."""
    paths = [rule.path for rule in _KINDS[kind]]
    assert [a for a in paths for b in paths if a != b and a.startswith(f"{b}.")] == []
