"""YAML as Kubernetes reads it: scalars, keys, aliases, and the lines of what is wrong."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast_operator.spec.problems import InvalidJobError
from holdfast_operator.spec.yaml_documents import LONGEST_TEXT, MOST_VALUES, read_documents


def _value(text: str) -> Any:
    (document,) = read_documents(f"a: {text}", "f")
    return document.body["a"]


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("yes", True),
        ("Off", False),
        ("on", True),
        ("y", "y"),
        ("N", "N"),
        ("~", None),
        ("", None),
        ("null", None),
        ("None", "None"),
        ("12", 12),
        ("-1_000", -1000),
        ("010", 8),
        ("0o17", 15),
        ("0x1F", 31),
        ("0b11", 3),
        ("08", 8.0),
        ("+4", 4),
        ("1.5", 1.5),
        ("3e-4", 0.0003),
        (".5", 0.5),
        ("1:30", "1:30"),
        ("190:20:30", "190:20:30"),
        ("2026-01-01", "2026-01-01"),
        ("=", "="),
        ("1.2.3", "1.2.3"),
        ("'off'", "off"),
        ('"4"', "4"),
        ("!!str 4", "4"),
        ("!!int '4'", 4),
        ("!!float 4", 4.0),
        ("'<<'", "<<"),
        ("<<", "<<"),
        ("[1, {b: c}]", [1, {"b": "c"}]),
    ],
)
def test_a_scalar_is_what_kubernetes_takes_it_for(text: str, value: Any) -> None:
    """Unquoted words are booleans and numbers by YAML 1.1, but never dates or base 60."""
    found = _value(text)
    assert found == value
    assert type(found) is type(value)


@pytest.mark.parametrize(
    ("text", "line", "said"),
    [
        ("a: 1\nb: 2\na: 3", 3, "a: stands twice in the same mapping, first on line 1"),
        ("a:\n  b: 1\n  b: 1", 3, "a.b: stands twice in the same mapping, first on line 2"),
        ("on: 1", 1, 'on: is a key that YAML reads as bool, not as text; write it in quotes: "on"'),
        ("12: 1", 1, "is a key that YAML reads as int"),
        ("? [a]\n: 1", 1, "has a key that is a mapping or a list"),
        ("a: .nan", 1, ".nan is a number that does not fit into 64 bits"),
        ("a: -.inf", 1, "-.inf is a number that does not fit into 64 bits"),
        ("a: 1e999", 1, "1e999 is a number that does not fit into 64 bits"),
        ("a: 9223372036854775808", 1, "does not fit into 64 bits"),
        ("a: !!int x", 1, "x is not a number"),
        ("a: " + "1" * 5000, 1, "is not a number"),
        ("a: !!binary aGk=", 1, "has the tag tag:yaml.org,2002:binary"),
        ("a: !!python/object:os.system {}", 1, "which JSON does not have"),
        ("a: !thing [1]", 1, "has the tag !thing"),
        ("a: 1\nb: &x [*x]", 2, "b[0]: is an alias of what it stands in"),
        ("<<: 3", 1, "<< merges something that is not a mapping"),
        ("a: [", 1, "is not YAML"),
        ("a: b: c", 1, "is not YAML: mapping values are not allowed here"),
        ("a: \x07", None, "is not YAML"),
        ("- 1", 1, "the document is (a list of 1), not a mapping of fields"),
        ("just text", 1, 'the document is "just text", not a mapping of fields'),
        ("[" * 100_000, 1, "is not YAML: nested more than 100 deep"),
        ("a: " + "[" * 120 + "]" * 120, 1, "nested more than 100 deep"),
        (
            "a: &a " + "[" * 60 + "1" + "]" * 60 + "\nb: " + "[" * 60 + "*a" + "]" * 60,
            1,
            "is nested more than 100 deep",
        ),
        ("x" * (LONGEST_TEXT + 1), None, "characters, more than"),
    ],
)
def test_what_json_cannot_hold_is_refused_with_its_line(
    text: str, line: int | None, said: str
) -> None:
    """Bad syntax, repeated keys, strange keys, tags and numbers each name where they are."""
    with pytest.raises(InvalidJobError) as caught:
        read_documents(text, "f")
    (problem,) = caught.value.problems
    assert said in str(problem)
    assert problem.line == line


def test_every_fault_of_every_document_is_told() -> None:
    """A fault in one document does not hide one in the next."""
    with pytest.raises(InvalidJobError) as caught:
        read_documents("a: .nan\non: 1\n---\nb: 1\nb: 2", "jobs.yaml")
    assert [problem.line for problem in caught.value.problems] == [1, 2, 5]
    assert all(line.startswith("jobs.yaml: line ") for line in str(caught.value).splitlines())


def test_aliases_that_blow_up_are_refused_soon() -> None:
    """Nine levels of nine aliases would be a thousand million values."""
    text = "a0: &a0 x\n" + "\n".join(
        f"a{at}: &a{at} [{', '.join([f'*a{at - 1}'] * 9)}]" for at in range(1, 10)
    )
    with pytest.raises(InvalidJobError, match=f"more than {MOST_VALUES} values"):
        read_documents(text, "f")


def test_merges_are_honoured_and_what_is_written_wins() -> None:
    """`<<` takes over the fields of other mappings, the first of a list before the others."""
    text = "x: &x {a: 1, b: 1}\ny: &y {b: 2, c: 2}\nz:\n  <<: [*x, *y]\n  c: 3\nw:\n  <<: *x"
    (document,) = read_documents(text, "f")
    assert document.body["z"] == {"a": 1, "b": 1, "c": 3}
    assert document.body["w"] == {"a": 1, "b": 1}
    assert document.marks["z",].line == 4


def test_empty_documents_are_passed_over() -> None:
    """A file may begin and end with a separator, and hold comments only."""
    found = read_documents("---\n# nothing\n---\na: 1\n---\n", "f")
    assert [document.body for document in found] == [{"a": 1}]
    assert found[0].line == 4


def test_a_character_in_two_halves_is_joined_and_a_half_is_refused() -> None:
    """JSON escapes rare characters as surrogate pairs; a lone half is no text."""
    assert _value(r'"\ud83d\ude00"') == "\U0001f600"
    with pytest.raises(InvalidJobError, match="half of a character"):
        _value(r'"\ud83d"')
