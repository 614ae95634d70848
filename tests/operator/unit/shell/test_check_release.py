"""The chart's own test can fail: what it says where something is wrong."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest

from house.repository import ROOT

_FILE = ROOT / "charts" / "holdfast" / "files" / "check_release.py"


@pytest.fixture
def checks(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The script, which does not wait."""
    # Its byte code would lie in the chart's folder.
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    found = importlib.util.spec_from_file_location("check_release", _FILE)
    assert found is not None
    assert found.loader is not None
    module = importlib.util.module_from_spec(found)
    found.loader.exec_module(module)
    monkeypatch.setattr(module, "PAUSE_SECONDS", 0.0)
    monkeypatch.setattr(module, "DEADLINE_SECONDS", 0.05)
    for name, value in {"HOME_NAMESPACE": "home", "OPERATOR": "op", "JOBS_IN": "team"}.items():
        monkeypatch.setenv(name, value)
    return module


def _held(renewed: str, holder: str = "op-1") -> tuple[int, Any]:
    return 200, {"spec": {"holderIdentity": holder, "renewTime": renewed}}


def _server(**change: list[tuple[int, Any]]) -> Callable[..., tuple[int, Any]]:
    """An API server over a release that is well, but for a change."""
    refused = (422, {"message": "minReplicas"})
    answers = {
        "deployment": [(200, {"status": {"readyReplicas": 1}})],
        "lease": [_held("1"), _held("2")],
        "good": [(201, {})],
        "bad": [refused],
        **change,
    }

    def ask(path: str, body: Any = None) -> tuple[int, Any]:
        kind = "deployment" if "deployments" in path else "lease"
        if body is not None:
            assert path.endswith("?dryRun=All")
            kind = "bad" if "minReplicas" in body["spec"] else "good"
        given = answers[kind]
        return given.pop(0) if len(given) > 1 else given[0]

    return ask


def test_a_release_that_is_well_passes(
    checks: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each check says so, in a line."""
    monkeypatch.setattr(checks, "ask", _server())
    checks.main()
    assert capsys.readouterr().out.count("ok: ") == 4


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"deployment": [(200, {"status": {}})]}, "Deployment op has no ready replica"),
        ({"deployment": [(403, {"message": "no"})]}, r"no ready replica \(403\)"),
        ({"lease": [_held("1")]}, "Lease op is not renewed"),
        ({"lease": [_held("1", ""), _held("2", "")]}, "Lease op is not renewed"),
        ({"good": [(404, {"message": "no such CRD"})]}, "takes an ElasticJob: 404: no such CRD"),
        ({"bad": [(201, {})]}, "refuses one that cannot be: 201"),
    ],
)
def test_what_is_wrong_ends_it_by_name(
    checks: ModuleType, monkeypatch: pytest.MonkeyPatch, change: Any, said: str
) -> None:
    """An operator that is away or dead, a missing CRD, one without its rules."""
    monkeypatch.setattr(checks, "ask", _server(**change))
    with pytest.raises(SystemExit, match=said):
        checks.main()


def test_an_api_server_that_gives_no_answer_is_named(
    checks: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is asked again until the deadline."""

    def away(*_: Any) -> tuple[int, Any]:
        raise ConnectionRefusedError("refused")

    monkeypatch.setattr(checks, "ask", away)
    with pytest.raises(SystemExit, match="the API server gave no answer: refused"):
        checks.main()
