"""The wheel, built once for a run."""

from __future__ import annotations

from pathlib import Path

import pytest

from house.fresh import uv
from house.repository import ROOT


@pytest.fixture(scope="session")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Builds the wheel from this checkout."""
    folder = tmp_path_factory.mktemp("dist")
    uv("build", "--wheel", "--out-dir", folder, ROOT)
    (built,) = folder.glob("*.whl")
    return built
