"""The versions that the images pin are the ones that pyproject.toml wants."""

from __future__ import annotations

import re
import tomllib

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from house.repository import ROOT

_PIN = re.compile(r"^([\w.-]+)==([^ ;]+)")
_EXTRAS = {
    "operator": ("operator", "master", "traces"),
    "worker": ("agent", "master", "cli"),
    "torch": ("train",),
}


def _wanted(extras: tuple[str, ...]) -> list[Requirement]:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extra = project["optional-dependencies"]
    lines = [*project["dependencies"], *(line for name in extras for line in extra[name])]
    return [Requirement(line) for line in lines]


def _pins(name: str) -> dict[str, set[str]]:
    """The versions of each library; some have one for each Python."""
    pins: dict[str, set[str]] = {}
    for line in (ROOT / "images" / f"{name}.txt").read_text(encoding="utf-8").splitlines():
        if found := _PIN.match(line):
            pins.setdefault(canonicalize_name(found[1]), set()).add(found[2])
    return pins


@pytest.mark.parametrize("image", _EXTRAS)
def test_pins_are_what_the_project_wants(image: str) -> None:
    """Else `make image-pins` was forgotten, and the image would have what no test has seen."""
    pins = _pins(image)
    wrong = [
        str(one)
        for one in _wanted(_EXTRAS[image])
        if not (found := pins.get(canonicalize_name(one.name)))
        or not all(one.specifier.contains(version) for version in found)
    ]
    assert wrong == []


@pytest.mark.parametrize("image", _EXTRAS)
def test_every_pin_has_its_hash(image: str) -> None:
    """A file that was changed at the index is refused by pip."""
    text = (ROOT / "images" / f"{image}.txt").read_text(encoding="utf-8")
    pins = re.split(r"\n(?=[\w.-]+==)", text)[1:]
    assert len(pins) > 20
    assert [one.split("==")[0] for one in pins if "--hash=sha256:" not in one] == []


def test_images_with_a_library_in_common_have_the_same_version() -> None:
    """One library serves both ends of a wire, and torch's list never moves the worker's."""
    operator, worker, torch = _pins("operator"), _pins("worker"), _pins("torch")
    for one, other in ((operator, worker), (worker, torch)):
        common = one.keys() & other.keys()
        assert len(common) > 8
        assert {name: (one[name], other[name]) for name in common if one[name] != other[name]} == {}
