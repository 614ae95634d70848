"""The CRD itself: its text, what of it is understood, and rules that cannot be evaluated."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from holdfast_operator.spec.cel_rules import check_relations
from holdfast_operator.spec.problems import nearest, show_path, show_value, value_at
from holdfast_operator.spec.schema import (
    FieldKind,
    Rule,
    Schema,
    SchemaError,
    parse_crd,
    with_defaults,
)
from holdfast_operator.spec.structure import check_structure, fault_of, found
from house.repository import ROOT
from jobs.job_files import CRD, job


def test_the_package_carries_the_manifest() -> None:
    """One source: what is packaged is a link to what is applied to a cluster."""
    packaged = ROOT / "operator/holdfast_operator/elasticjobs.yaml"
    assert packaged.is_symlink()
    assert not Path(packaged.readlink()).is_absolute()
    assert packaged.resolve() == ROOT / "manifests/crd/elasticjobs.yaml"
    assert (ROOT / "manifests/crd/elasticjobs.yaml").read_text(encoding="utf-8") == CRD


def test_the_crd_is_understood_whole() -> None:
    """Every construct in it is one that the checks here honour."""
    crd = parse_crd(CRD)
    assert (crd.api_version, crd.kind) == ("holdfast.dev/v1alpha1", "ElasticJob")
    assert crd.schema.properties["spec"].required == ("replicas", "worker")
    words = crd.schema.properties["status"].properties["masterEndpoint"].description
    assert words == "Address of the master inside the cluster, host:port."


def _crd(**schema: Any) -> str:
    version = {"name": "v1", "schema": {"openAPIV3Schema": {"type": "object", **schema}}}
    spec = {"group": "g", "names": {"kind": "K"}, "versions": [version]}
    return yaml.safe_dump({"spec": spec})


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("a: [", "not a CustomResourceDefinition"),
        ("spec: {}", "not a CustomResourceDefinition"),
        ("spec: {versions: [1, 2]}", "not a CustomResourceDefinition"),
        (_crd(oneOf=[]), "oneOf is not understood"),
        (_crd(properties={"a": {"type": "number"}}), "a: type 'number' is not understood"),
        (_crd(properties={"a": {}}), "a: type 'type' is not understood"),
        (
            _crd(**{"x-kubernetes-validations": [{"rule": "true", "message": "", "x": 1}]}),
            "rule with x is not understood",
        ),
    ],
)
def test_a_crd_that_is_not_understood_is_refused(text: str, said: str) -> None:
    """The CRD cannot promise a check that nobody makes here."""
    with pytest.raises(SchemaError, match=said):
        parse_crd(text)


def test_defaults_are_filled_in_without_touching_the_object() -> None:
    """Groups that are absent get their defaults, those in lists too; the input stays."""
    body = job(podTemplateOverrides=[{"manager": "m"}], checkpoint={"memory": {"copies": 0}})
    before = repr(body)
    result = with_defaults(body, parse_crd(CRD).schema)
    assert repr(body) == before
    assert result["spec"]["podTemplateOverrides"] == [{"manager": "m", "role": "worker"}]
    assert result["spec"]["checkpoint"]["memory"] == {"copies": 0, "interval": "Auto"}
    assert result["spec"]["health"]["straggler"]["votesOutOf"] == 5
    again = with_defaults(body, parse_crd(CRD).schema)
    result["spec"]["extraRoles"].append(1)
    assert again["spec"]["extraRoles"] == []


_NUMBER = Schema(kind=FieldKind.INTEGER)


def _relations(value: Any, *rules: Rule, known: Any = (), old: Any = None) -> list[str]:
    schema = Schema(kind=FieldKind.OBJECT, properties={"n": _NUMBER}, rules=rules)
    return [str(one) for one in check_relations(value, schema, known, old=old)]


def test_a_rule_that_cannot_be_evaluated_is_a_problem() -> None:
    """A rule that fails to run never passes in silence."""
    (problem,) = _relations({"n": 1}, Rule(expression="self.n == 'x'", message="m"))
    assert "the rule \"self.n == 'x'\" cannot be evaluated" in problem


def test_a_rule_that_fails_on_a_known_fault_says_nothing_more() -> None:
    """A known fault keeps a rule that fails on it from reporting a second fault."""
    known = list(
        check_structure({"n": 1, "m": 2}, Schema(kind=FieldKind.OBJECT, properties={"n": _NUMBER}))
    )
    assert len(known) == 1
    assert _relations({"n": 1}, Rule(expression="self.k == 1", message="m"), known=known) == []


@pytest.mark.parametrize(
    ("expression", "said"),
    [
        ("'n is %d, %s, 100%%'.format([self.n, 'x'])", "n is 1, x, 100%"),
        ("'%d'.format(self.n)", "plain"),
        ("self.n + self.nothing", "plain"),
    ],
)
def test_a_message_that_cannot_be_made_gives_way_to_the_fixed_one(
    expression: str, said: str
) -> None:
    """Kubernetes does the same with a messageExpression that fails."""
    rule = Rule(expression="self.n == 2", message="plain", message_expression=expression)
    assert _relations({"n": 1}, rule) == [f"n: 1 is refused: {said}"]


def test_a_change_rule_follows_the_items_of_a_keyed_list() -> None:
    """Items are compared with the old item of their key; in other lists with none."""
    item = Schema(
        kind=FieldKind.OBJECT,
        properties={"name": Schema(kind=FieldKind.STRING), "n": _NUMBER},
        rules=(Rule(expression="self.n >= oldSelf.n", message="only up", field=("n",)),),
    )
    keyed = Schema(kind=FieldKind.ARRAY, items=item, unique="map", unique_by=("name",))
    old = [{"name": "a", "n": 1}, {"name": "b", "n": 5}]
    new = [{"name": "b", "n": 4}, {"name": "a", "n": 2}, {"name": "c", "n": 0}]
    assert [str(one) for one in check_relations(new, keyed, old=old)] == [
        "[0].n: 4 is refused: only up"
    ]
    atomic = Schema(kind=FieldKind.ARRAY, items=item)
    assert list(check_relations(new, atomic, old=old)) == []


def test_a_rule_on_a_number_without_old_value_is_not_asked() -> None:
    """A transition rule holds for updates only, as in the API server."""
    rule = Rule(expression="self.n == oldSelf.n", message="fixed")
    assert _relations({"n": 1}, rule) == []
    assert _relations({"n": 1}, rule, old={"n": 2}) == ["n: 1 is refused: fixed"]


def test_a_list_of_anything_is_not_looked_into() -> None:
    """Only a list whose items have a schema is walked."""
    assert list(check_structure([1, "x"], Schema(kind=FieldKind.ARRAY, most=2))) == []


def test_dates_in_a_status_are_checked() -> None:
    """A `format: date-time` is honoured: our own status is checked by it in other tests."""
    schema = Schema(kind=FieldKind.STRING, form="date-time")
    assert list(check_structure("2026-01-31T23:59:59Z", schema)) == []
    assert len(list(check_structure("yesterday", schema))) == 1


def test_patterns_are_re2() -> None:
    """A pattern that RE2 cannot run is refused with the reason, also by the search."""
    assert fault_of("a+b") is None
    assert fault_of("(?=x)") == "invalid perl operator: (?="
    assert found("^a$", "a")
    assert not found("^a$", "a\n")
    with pytest.raises(ValueError, match="not an RE2 pattern"):
        found("(", "a")


def test_paths_and_values_read_well() -> None:
    """Dots, brackets and quotes where they are needed; long values are cut."""
    assert show_path(("spec", "rules", 0, "a.b", "x")) == 'spec.rules[0]["a.b"].x'
    assert show_path((0,)) == "[0]"
    assert show_value("x" * 200) == '"' + "x" * 78 + "…"
    assert show_value({"a": 1}) == "(a mapping of 1)"
    assert value_at({"a": [1]}, ("a", 0)) == 1
    assert value_at({"a": [1]}, ("a", 5)) is None
    assert value_at({"a": [1]}, ("a", "b")) is None


def test_the_nearest_name_ignores_case_first() -> None:
    """`minreplicas` means minReplicas; what is like nothing has no nearest name."""
    assert nearest("minreplicas", ["maxReplicas", "minReplicas"]) == "minReplicas"
    assert nearest("minReplcas", ["maxReplicas", "minReplicas"]) == "minReplicas"
    assert nearest("zzz", ["maxReplicas"]) is None
