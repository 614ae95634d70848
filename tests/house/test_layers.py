"""Every import-linter contract refuses the import that it is there to refuse.

A contract whose pattern matches nothing passes in silence, so each is shown a violation, in a
miniature tree that is checked by the repository's own configuration.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from repository import PACKAGES, ROOT

# For each contract, what it must refuse: the importing module and the line planted in it.
VIOLATIONS = {
    "layers": [
        ("holdfast_operator/sync", "import holdfast_master"),
        ("holdfast_master/loop", "import holdfast_agent"),
        ("holdfast_agent/session", "import holdfast_operator"),
        ("holdfast_cli/run", "import holdfast_master"),
        ("holdfast_cli/watch", "from holdfast_operator import handlers"),
        ("holdfast_wire/journal", "import holdfast"),
        ("holdfast/job", "import holdfast_agent"),
    ],
    "sdk": [
        ("holdfast_master/loop", "import holdfast"),
        ("holdfast_operator/sync", "import holdfast"),
        ("holdfast_cli/run", "import holdfast"),
    ],
    "torch": [
        ("holdfast_master/loop", "def f():\n    import torch"),
        ("holdfast_operator/sync", "import torch.distributed"),
        ("holdfast_cli/watch", "import torch"),
        ("holdfast_wire/journal", "import torch"),
    ],
    "kubernetes": [
        ("holdfast_master/loop", "import kubernetes"),
        ("holdfast_agent/session", "import kopf"),
        ("holdfast/job", "import kubernetes"),
        ("holdfast_wire/journal", "import kubernetes"),
    ],
    "pure": [
        ("holdfast_master/decide/liveness", "import time"),
        ("holdfast_master/decide/failure", "import holdfast_wire.codec"),
        ("holdfast_agent/decide/lease", "from random import random"),
        ("holdfast_master/core", "import logging"),
        ("holdfast_master/job/desk", "import time"),
        ("holdfast_operator/plan/pods", "import os.path"),
        ("holdfast_operator/spec/schema", "import threading"),
        ("holdfast_wire/messages/job", "import grpc"),
    ],
    "master": [
        ("holdfast_master/decide/liveness", "import holdfast_master.job"),
        ("holdfast_master/job/desk", "import holdfast_master.core"),
        ("holdfast_master/core", "import holdfast_master.service_job"),
        ("holdfast_master/service_agent", "import holdfast_master.serving"),
        ("holdfast_master/instructions", "import holdfast_master.decide"),
        ("holdfast_master/serving", "import holdfast_master.inspection, holdfast_master.assembly"),
    ],
    "generated": [
        ("holdfast_master/loop", "from holdfast_wire.v1 import agent_pb2"),
        ("holdfast_wire/errors", "import holdfast_wire.v1.job_pb2"),
    ],
}
ALLOWED = [
    ("holdfast_cli/run", "from holdfast_operator import spec, plan, status"),
    ("holdfast_cli/watch", "import holdfast_operator.spec.schema"),
    ("holdfast_agent/session", "import holdfast\nimport holdfast_wire"),
    ("holdfast_master/decide/liveness", "import dataclasses\nimport holdfast_wire.keys"),
]
# What the planted lines import; the codec does input and output, in the sense of the contracts.
MODULES = {
    "holdfast_agent/decide/__init__": "",
    "holdfast_agent/parts": "",
    "holdfast_agent/peers": "",
    "holdfast_agent/session": "",
    "holdfast_operator/news/digest": "",
    "holdfast_operator/news/happenings": "",
    "holdfast_cli/client": "",
    "holdfast_cli/runner/sync": "",
    "holdfast_master/assembly": "",
    "holdfast_master/core": "",
    "holdfast_master/inspection/__init__": "",
    "holdfast_master/decide/__init__": "",
    "holdfast_master/inputs": "",
    "holdfast_master/instructions": "",
    "holdfast_master/job/__init__": "",
    "holdfast_master/main": "",
    "holdfast_master/reflection": "",
    "holdfast_master/service_agent": "",
    "holdfast_master/service_job": "",
    "holdfast_master/service_operator": "",
    "holdfast_master/service_watch": "",
    "holdfast_master/serving": "",
    "holdfast_master/settings": "",
    "holdfast_operator/handlers": "",
    "holdfast_operator/plan/__init__": "",
    "holdfast_operator/spec/__init__": "",
    "holdfast_operator/spec/schema": "",
    "holdfast_operator/status": "",
    "holdfast_wire/codec": "import google.protobuf\nimport holdfast_wire.v1.agent_pb2",
    "holdfast_wire/keys": "",
    "holdfast_wire/messages/__init__": "",
    "holdfast_wire/v1/__init__": "",
    "holdfast_wire/v1/agent_pb2": "import google.protobuf",
    "holdfast_wire/v1/job_pb2": "import google.protobuf",
}


def _lint(
    tree: Path, planted: list[tuple[str, str]], *options: str
) -> subprocess.CompletedProcess[str]:
    contents = {f"{package}/__init__": "" for package in PACKAGES}
    for name, text in (contents | MODULES | dict(planted)).items():
        path = tree / f"{name}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        (path.parent / "__init__.py").touch()
        path.write_text(text + "\n", encoding="utf-8")
    lint = Path(sys.executable).parent / "lint-imports"
    return subprocess.run(
        [lint, "--config", ROOT / "pyproject.toml", "--no-cache", "--no-logo", *options],
        cwd=tree,
        env=os.environ | {"PYTHONPATH": str(tree), "COLUMNS": "200"},
        check=False,
        capture_output=True,
        text=True,
        timeout=60,
    )


@pytest.mark.parametrize("contract", VIOLATIONS)
def test_a_violation_breaks_its_contract(tmp_path: Path, contract: str) -> None:
    """Each planted import is refused, and named, by the contract that it breaks."""
    done = _lint(tmp_path, VIOLATIONS[contract], "--contract", contract)
    assert done.returncode == 1, done.stdout + done.stderr
    for module, _ in VIOLATIONS[contract]:
        assert f" {module.replace('/', '.')} -> " in done.stdout, done.stdout


def test_what_the_layers_allow_passes(tmp_path: Path) -> None:
    """The contracts refuse no import that the architecture wants."""
    done = _lint(tmp_path, ALLOWED)
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_contract_is_shown_a_violation() -> None:
    """A contract that is added to pyproject.toml gets its planted violation here."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    contracts = settings["tool"]["importlinter"]["contracts"]
    assert {contract["id"] for contract in contracts} == VIOLATIONS.keys()
