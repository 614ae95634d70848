"""Each extra is enough for its part: installed alone from the wheel, all its modules import."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from house.fresh import import_all, uv
from house.repository import PACKAGES

# What must work with each extra; without any, the wire and the SDK do.
EXTRAS = {
    "": ["holdfast_wire", "holdfast"],
    "operator": ["holdfast_operator"],
    "master": ["holdfast_master"],
    "master,traces": ["holdfast_master"],
    "agent": ["holdfast_agent", "holdfast"],
    "cli": [
        "holdfast_cli",
        "holdfast_operator.pods",
        "holdfast_operator.crd",
        "holdfast_operator.master_spec",
        "holdfast_operator.plan",
        "holdfast_operator.spec",
        "holdfast_operator.status",
    ],
    "train": ["holdfast"],
}

# Imported only where a variable asks for spans; without [traces] the master says so.
OF_TRACES = {"holdfast_master.metrics.spans"}


@pytest.mark.slow
@pytest.mark.timeout(600)  # torch with its CUDA libraries is 4.6 GB where uv's cache is cold
@pytest.mark.parametrize("extra", [pytest.param(extra, id=extra or "none") for extra in EXTRAS])
def test_an_extra_installs_alone_and_its_modules_import(
    tmp_path: Path, wheel: Path, extra: str
) -> None:
    """In a fresh environment with one extra, every module of its packages imports with -I."""
    python = tmp_path / "venv" / "bin" / "python"
    uv("venv", "--python", sys.executable, tmp_path / "venv")
    wanted = f"holdfast[{extra}] @ {wheel.as_uri()}" if extra else f"holdfast @ {wheel.as_uri()}"
    uv("pip", "install", "--python", python, wanted)
    imported = import_all(python, *EXTRAS[extra])
    left_out = OF_TRACES if extra == "master" else frozenset()
    assert {name: why for name, why in imported.failures.items() if name not in left_out} == {}
    assert all(Path(file).is_relative_to(tmp_path) for file in imported.modules.values())


@pytest.mark.parametrize("package", PACKAGES)
def test_importing_a_part_never_loads_torch(package: str) -> None:
    """No module imports torch or numpy, and only the operator's speak to Kubernetes."""
    imported = import_all(sys.executable, package)
    assert imported.failures == {}
    allowed = {"kopf", "kubernetes"} if package == "holdfast_operator" else set()
    assert set(imported.heavy) <= allowed
