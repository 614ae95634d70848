"""Every bound, choice and type of the CRD, at its edge and one beyond; made from the CRD itself."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from holdfast_operator.spec.problems import Path, Problem, ProblemKind
from holdfast_operator.spec.schema import FieldKind, Schema, parse_crd
from jobs.job_files import CRD, faults_of, job
from jobs.placed_fields import fields, put

Field = tuple[str, Path, Schema]
SPEC: list[Field] = [
    (".".join(map(str, path)), path, schema)
    for path, schema in fields(parse_crd(CRD).schema.properties["spec"], ("spec",))
]
# In a status nothing is checked, and pods' own lists are the pod template's.


def _at(path: Path, value: Any) -> list[Problem]:
    return [one for one in faults_of(put(job(), path, value)) if one.path == path]


def _kind(kind: FieldKind, bound: str) -> list[Any]:
    chosen = [
        (path, schema)
        for _, path, schema in SPEC
        if schema.kind is kind and getattr(schema, bound) not in (None, "", ())
    ]
    return [pytest.param(*one, id=".".join(map(str, one[0]))) for one in chosen]


@pytest.mark.parametrize(("path", "schema"), _kind(FieldKind.INTEGER, "least"))
def test_a_number_is_accepted_at_its_edges_and_refused_beyond(path: Path, schema: Schema) -> None:
    """The smallest and the largest number are right; one less and one more name the bound."""
    assert schema.least is not None
    assert schema.most is not None
    for right in (schema.least, schema.most):
        assert [one for one in _at(path, right) if one.kind is not ProblemKind.RELATION] == []
    (low,) = [one for one in _at(path, schema.least - 1) if one.kind is ProblemKind.BOUND]
    (high,) = [one for one in _at(path, schema.most + 1) if one.kind is ProblemKind.BOUND]
    assert f"below the minimum {schema.least}" in str(low)
    assert f"above the maximum {schema.most}" in str(high)
    assert f"from {schema.least} to {schema.most}" in low.remedy


@pytest.mark.parametrize(("path", "schema"), _kind(FieldKind.STRING, "most"))
def test_a_text_is_accepted_at_its_longest_and_refused_beyond(path: Path, schema: Schema) -> None:
    """A text of the greatest length is right; one more character is refused with the length."""
    assert schema.most is not None
    longest = "a" * schema.most if "/" not in schema.pattern else "a/" + "a" * (schema.most - 2)
    letter = "a"
    if path[-1] == "maxMemory":
        letter, longest = "1", "1" * schema.most
    assert [one for one in _at(path, longest) if one.kind is ProblemKind.BOUND] == []
    (problem,) = [one for one in _at(path, longest + letter) if one.kind is ProblemKind.BOUND]
    assert f"has {schema.most + 1} characters; use at most {schema.most}" in str(problem)


@pytest.mark.parametrize(("path", "schema"), _kind(FieldKind.STRING, "least"))
def test_a_text_that_is_too_short_is_refused(path: Path, schema: Schema) -> None:
    """An empty text is refused where one is needed."""
    assert any("too short" in problem.fault for problem in _at(path, ""))


@pytest.mark.parametrize(("path", "schema"), _kind(FieldKind.STRING, "pattern"))
def test_a_text_of_the_wrong_form_is_refused(path: Path, schema: Schema) -> None:
    """The pattern holds to the end of the text: a newline after it is no way around it."""
    for wrong in ("Ä b", "a/b\n" if "/" in schema.pattern else "a\n"):
        assert any("wrong form" in problem.fault for problem in _at(path, wrong))


@pytest.mark.parametrize(("path", "schema"), _kind(FieldKind.STRING, "choices"))
def test_a_choice_is_accepted_and_another_word_is_refused(path: Path, schema: Schema) -> None:
    """Every listed word is right; another is refused with the list, and the near one named."""
    for choice in schema.choices:
        assert _at(path, choice) == []
    (problem,) = _at(path, schema.choices[0].lower())
    assert problem.kind is ProblemKind.CHOICE
    assert f"use one of {', '.join(schema.choices)}" in problem.remedy
    assert f"did you mean {schema.choices[0]}?" in problem.remedy


@pytest.mark.parametrize(("path", "schema"), _kind(FieldKind.ARRAY, "most"))
def test_a_list_that_is_too_long_is_refused(path: Path, schema: Schema) -> None:
    """One item more than the bound is refused; the bound itself is not."""
    assert schema.most is not None
    assert not any("too long" in one.fault for one in _at(path, [None] * schema.most))
    assert any("too long" in one.fault for one in _at(path, [None] * (schema.most + 1)))


@pytest.mark.parametrize(("path", "schema"), _kind(FieldKind.ARRAY, "least"))
def test_a_list_that_is_too_short_is_refused(path: Path, schema: Schema) -> None:
    """An empty list is refused where items are needed."""
    assert any("too short" in one.fault for one in _at(path, []))


@pytest.mark.parametrize(("path", "schema"), _kind(FieldKind.OBJECT, "most"))
def test_a_mapping_with_too_many_keys_is_refused(path: Path, schema: Schema) -> None:
    """One key more than the bound is refused; the bound itself is not."""
    assert schema.most is not None
    keys = {f"k{at}": "v" for at in range(schema.most)}
    assert _at(path, keys) == []
    assert any("too many keys" in one.fault for one in _at(path, {**keys, "more": "v"}))


WRONG: dict[FieldKind, list[Any]] = {
    FieldKind.OBJECT: [7, "x", [], True],
    FieldKind.ARRAY: [7, "x", {}, True],
    FieldKind.STRING: [7, 1.5, [], {}, True],
    FieldKind.INTEGER: ["x", 1.5, 4.0, [], {}, True],
    FieldKind.BOOLEAN: ["true", 0, [], {}],
    FieldKind.INT_OR_STRING: [1.5, [], {}, True],
}


def _wrong() -> list[Any]:
    """Return each field with one of its kind's wrong values, in turn; the last has them all.

    One function judges all fields of a kind, and a file takes it 20 ms.
    """
    last = {schema.kind: name for name, _, schema in SPEC}
    turns = {kind: itertools.cycle(values) for kind, values in WRONG.items()}
    return [
        pytest.param(path, WRONG[kind] if last[kind] == name else [next(turns[kind])], id=name)
        for name, path, kind in ((name, path, schema.kind) for name, path, schema in SPEC)
    ]


@pytest.mark.parametrize(("path", "values"), _wrong())
def test_a_value_of_another_type_is_refused_once(path: Path, values: list[Any]) -> None:
    """One problem names the field, what it is and what it should be."""
    for value in values:
        (problem,) = _at(path, value)
        assert problem.kind is ProblemKind.TYPE
        assert ", not " in problem.fault
        assert problem.remedy


def test_every_field_of_the_spec_was_tried() -> None:
    """The walk reaches the fields of lists and mappings; a new kind of bound shows here."""
    assert len(SPEC) > 140
    assert {schema.kind for _, _, schema in SPEC} == set(FieldKind)
