"""Every import-linter contract refuses the import that it is there to refuse.

A contract whose pattern matches nothing passes in silence, so each is shown a violation, in a
miniature tree that is checked by the repository's own configuration.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from house.repository import PACKAGES, ROOT

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
        ("holdfast_master/policies/liveness", "import time"),
        ("holdfast_master/policies/failure", "import holdfast_wire.codec"),
        ("holdfast_agent/policies/liveness", "from random import random"),
        ("holdfast/local_sgd/policies/weights", "def f():\n    import torch"),
        ("holdfast/local_sgd/policies/schedule", "import time"),
        ("holdfast/local_sgd/config", "import torch.optim"),
        ("holdfast_master/core", "import logging"),
        ("holdfast_master/job/state/context", "import time"),
        ("holdfast_operator/plan/pods", "import os.path"),
        ("holdfast_operator/planner", "import random"),
        ("holdfast_operator/spec/schema", "import threading"),
        ("holdfast_wire/messages/job", "import grpc"),
    ],
    "master": [
        ("holdfast_master/policies/liveness", "import holdfast_master.job"),
        ("holdfast_master/job/state/context", "import holdfast_master.core"),
        ("holdfast_master/core", "import holdfast_master.server"),
        ("holdfast_master/server/rpc", "import holdfast_master.process"),
        ("holdfast_master/instructions", "import holdfast_master.policies"),
        ("holdfast_master/journal/reader", "import holdfast_master.replay"),
    ],
    "job": [
        ("holdfast_master/job/state/context", "import holdfast_master.job.worlds"),
        ("holdfast_master/job/nodes/liveness", "import holdfast_master.job.rescale"),
        ("holdfast_master/job/requests/views", "import holdfast_master.job.reconcile"),
    ],
    "integrations": [
        ("holdfast/flash/trainer/client", "import holdfast.integrations"),
        ("holdfast/flash/trainer/planner", "import holdfast.local_sgd"),
    ],
    "local-sgd": [
        ("holdfast/local_sgd/policies/anomaly", "import holdfast.local_sgd.sync"),
        ("holdfast/local_sgd/config", "import holdfast.local_sgd.policies"),
        ("holdfast/local_sgd/errors", "import holdfast.local_sgd.config"),
    ],
    "flash": [
        ("holdfast/flash/memory/arena", "import holdfast.flash.storage"),
        ("holdfast/flash/storage/commit", "import holdfast.flash.server"),
        ("holdfast/flash/server/service", "import holdfast.flash.trainer"),
        ("holdfast/flash/trainer/client", "import holdfast.flash.checkpointer"),
    ],
    "agent": [
        ("holdfast_agent/workers/runner", "import holdfast_agent.master_link"),
        ("holdfast_agent/master_link/session", "import holdfast_agent.agent"),
        ("holdfast_agent/policies/liveness", "import holdfast_agent.config"),
    ],
    "operator": [
        ("holdfast_operator/plan/pods", "import holdfast_operator.pods"),
        ("holdfast_operator/spec/schema", "import holdfast_operator.plan"),
        ("holdfast_operator/planner", "import holdfast_operator.reconcile"),
    ],
    "cli": [
        ("holdfast_cli/client", "import holdfast_cli.main"),
        ("holdfast_cli/terminal_text", "import holdfast_cli.target"),
    ],
    "cycles": [
        (
            "holdfast_master/policies/liveness",
            "import holdfast_master.policies.failure",
        ),
        (
            "holdfast_master/policies/failure",
            "import holdfast_master.policies.liveness",
        ),
    ],
    "generated": [
        ("holdfast_master/loop", "from holdfast_wire.v1 import agent_pb2"),
        ("holdfast_wire/errors", "import holdfast_wire.v1.job_pb2"),
    ],
}
ALLOWED = [
    ("holdfast_cli/run", "from holdfast_operator import spec, plan, planner, status"),
    ("holdfast_cli/watch", "import holdfast_operator.spec.schema"),
    ("holdfast_agent/agent", "import holdfast\nimport holdfast_wire"),
    ("holdfast_master/policies/liveness", "import dataclasses\nimport holdfast_wire.keys"),
]


def _named() -> list[str]:
    """Every module that a contract names: it refuses a tree that lacks one."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    contracts = settings["tool"]["importlinter"]["contracts"]
    layers = [
        f"{container}.{name.strip(' ()')}"
        for contract in contracts
        for container in contract.get("containers", [])
        for layer in contract["layers"]
        for name in re.split("[|:]", layer)
    ]
    sources = [
        name.removesuffix(".**") for one in contracts for name in one.get("source_modules", [])
    ]
    return [name.replace(".", "/") for name in layers + sources]


# What the planted lines import; the codec does input and output, in the sense of the contracts.
MODULES = {f"{layer}/__init__": "" for layer in _named()} | {
    "holdfast_agent/master_link/peers": "",
    "holdfast_agent/checkpoint/parts": "",
    "holdfast_cli/client/__init__": "",
    "holdfast_master/process/serving": "",
    "holdfast_operator/events/news": "",
    "holdfast_operator/pods/__init__": "",
    "holdfast_operator/crd": "",
    "holdfast_operator/spec/schema": "",
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
        for folder in path.relative_to(tree).parents[:-1]:
            (tree / folder / "__init__.py").touch()
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
    if contract == "cycles":  # it names the import to remove, one of the two
        assert "No cycles are allowed in holdfast_master.policies." in done.stdout
        return
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
