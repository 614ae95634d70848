"""The fields that the page on versions of the API calls stable, against what they were."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import yaml

from holdfast_operator.crd import load_crd
from house.repository import ROOT

_PAGE: Final = ROOT / "docs/reference/api-stability.md"
_KEPT: Final = Path(__file__).parent / "stable_fields.json"
"""Path of each stable field → its type, default and allowed values. A change of it breaks users."""
_SAID: Final = ("type", "default", "enum", "x-kubernetes-int-or-string")


def _schema() -> dict[str, Any]:
    (version,) = yaml.safe_load(load_crd())["spec"]["versions"]
    found: dict[str, Any] = version["schema"]["openAPIV3Schema"]["properties"]
    return found


def _stable() -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the paths that the page names, and their schemas."""
    row = next(line for line in _PAGE.read_text().splitlines() if line.startswith("| stable |"))
    spec, status = row.split("|")[2].split("in the status")
    for group, names in (("spec", spec), ("status", status)):
        for path in re.findall(r"`([\w.]+)`", names):
            at: dict[str, Any] = _schema()[group]
            for name in path.split("."):
                at = at["properties"][name]
            yield f"{group}.{path}", at


def _fields(path: str, schema: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    yield path, {name: schema[name] for name in _SAID if name in schema}
    for name, one in schema.get("properties", {}).items():
        yield from _fields(f"{path}.{name}", one)
    if isinstance(schema.get("items"), dict):
        yield from _fields(f"{path}[]", schema["items"])


def test_a_stable_field_keeps_its_name_type_default_and_values() -> None:
    """A field may be added and a value allowed; nothing that a file or a program relies on goes."""
    kept: dict[str, dict[str, Any]] = json.loads(_KEPT.read_text())
    found = dict(one for path, schema in _stable() for one in _fields(path, schema))
    for path, said in kept.items():
        assert path in found, f"{path} is gone or not called stable any more"
        now = dict(found[path])
        assert set(said.pop("enum", ())) <= set(now.pop("enum", ())), path
        assert now == said, path
    assert found.keys() == kept.keys(), "a new stable field: add it to stable_fields.json"
