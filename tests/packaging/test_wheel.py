"""The wheel holds what an installed Holdfast needs, and nothing else."""

from __future__ import annotations

import zipfile
from email import message_from_bytes
from pathlib import Path

import pytest

from house.repository import PACKAGES, ROOT, tracked_files

pytestmark = pytest.mark.slow


@pytest.fixture
def names(wheel: Path) -> set[str]:
    """The names of the wheel's files."""
    with zipfile.ZipFile(wheel) as archive:
        return set(archive.namelist())


def test_every_tracked_file_of_the_packages_is_in_the_wheel(names: set[str]) -> None:
    """Modules, generated code, .proto files, py.typed markers and data all travel."""
    wanted = {
        str(Path(package) / path.relative_to(root))
        for package, root in PACKAGES.items()
        for path in tracked_files()
        if path.is_relative_to(root)
    }
    assert wanted - names == set()


def test_nothing_else_is_in_the_wheel(names: set[str]) -> None:
    """Besides the six packages there is only metadata: no tests, no benchmarks."""
    assert {name.split("/")[0] for name in names} - PACKAGES.keys() == {"holdfast-0.1.0.dist-info"}
    assert [name for name in names if "test" in name.casefold()] == []


def test_each_package_says_that_it_is_typed(names: set[str]) -> None:
    """A py.typed in each package lets a user's type checker read our annotations."""
    assert {f"{package}/py.typed" for package in PACKAGES} - names == set()


def test_the_crd_is_in_the_wheel_as_a_file(wheel: Path) -> None:
    """The operator's package carries the manifest's text, not a link that leads nowhere."""
    with zipfile.ZipFile(wheel) as archive:
        text = archive.read("holdfast_operator/elasticjobs.yaml")
    assert text == (ROOT / "manifests/crd/elasticjobs.yaml").read_bytes()


def test_the_licence_and_the_commands_are_declared(wheel: Path) -> None:
    """The metadata names the licence and carries its text; the commands are there."""
    with zipfile.ZipFile(wheel) as archive:
        metadata = message_from_bytes(archive.read("holdfast-0.1.0.dist-info/METADATA"))
        licence = archive.read("holdfast-0.1.0.dist-info/licenses/LICENSE").decode()
        commands = archive.read("holdfast-0.1.0.dist-info/entry_points.txt").decode()
    assert metadata["License-Expression"] == "Apache-2.0"
    assert "Apache License" in licence
    assert "holdfast-run = holdfast_agent.main:main" in commands


def test_the_copy_helper_is_compiled_into_the_wheel(names: set[str], wheel: Path) -> None:
    """It is there, and the wheel's name says for which platform; for any Python, by ctypes."""
    assert "holdfast/flash/trainer/libcopy.so.1" in names
    assert wheel.name.startswith("holdfast-0.1.0-py3-none-linux_")
