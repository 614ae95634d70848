"""What `kubectl explain elasticjob` says of each field: what it does, its unit, its default."""

from __future__ import annotations

import json
import re

from holdfast_operator.spec.schema import Schema, parse_crd, walk
from house.repository import ROOT
from jobs.job_files import CRD

_PAGE = ROOT / "docs/reference/api-stability.md"
_LONGEST = 120
"""Characters of a first sentence: two lines of a terminal."""
_UNITS = {"Seconds": "seconds?", "Percent": "percent", "Steps": "steps?", "interval": "steps"}
"""End of a name, and the word for its unit."""


def _is_plain_item(path: tuple[str | int, ...], node: Schema) -> bool:
    """Return True for an item of a list of texts or numbers: the list itself is described."""
    return str(path[-1]).endswith("[]") and not node.properties


_FIELDS = {
    ".".join(map(str, path)): node
    for path, node in walk(parse_crd(CRD).schema)
    if path and path[0] in {"spec", "status"} and not _is_plain_item(path, node)
}


def test_descriptions_are_of_sentences_and_the_first_is_short() -> None:
    """A person who reads one line of each field knows what it is for."""
    assert len(_FIELDS) > 150
    wrong = {
        field: node.description
        for field, node in _FIELDS.items()
        if not re.match(r"[A-Z`].*\.$", node.description)
        or len(re.split(r"[.;] ", node.description)[0]) > _LONGEST
    }
    assert wrong == {}


def test_a_name_with_a_unit_has_it_in_words() -> None:
    """`Longest wait` alone does not say of what."""
    wrong = {
        field: node.description
        for field, node in _FIELDS.items()
        for end, unit in _UNITS.items()
        if field.endswith(end) and not re.search(rf"\b{unit}\b", node.description, re.IGNORECASE)
    }
    assert wrong == {}


def test_each_default_is_told_and_is_true() -> None:
    """`kubectl explain` shows no defaults but those in the text."""
    told = {
        field: re.findall(r"Default: (.*)\.$", node.description) for field, node in _FIELDS.items()
    }
    assert told == {
        field: [_plain(node)] if _is_told(node) else [] for field, node in _FIELDS.items()
    }


def test_the_page_about_versions_says_of_each_field_whether_it_stays() -> None:
    """A new field belongs into one of the rows: stable, may change, or deprecated."""
    rows = [line for line in _PAGE.read_text().splitlines() if line.startswith("| ")]
    (stable,) = (row for row in rows if row.startswith("| stable |"))
    (unstable,) = (row for row in rows if row.startswith("| may change |"))
    (old,) = (row for row in rows if row.startswith("| deprecated |"))
    for name, node in parse_crd(CRD).schema.properties["spec"].properties.items():
        whole = sum(f"`{name}`" in row for row in (stable, unstable, old))
        assert whole == 1 or (not whole and f"`{name}." in stable), name
        assert (f"`{name}`" in old) is node.description.startswith("Deprecated"), name


def _is_told(node: Schema) -> bool:
    return node.has_default and not isinstance(node.default, dict | list)


def _plain(node: Schema) -> str:
    return node.default if isinstance(node.default, str) else json.dumps(node.default)
