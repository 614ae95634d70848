"""Names of `holdfast.local_sgd`: each is there, and none brings torch with it before its use."""

from __future__ import annotations

import subprocess
import sys

import pytest

import holdfast.local_sgd as package


def test_every_public_name_is_there() -> None:
    """The list and the modules that the names come from agree."""
    assert sorted(package.__all__) == sorted(package._MODULES)
    assert [name for name in package.__all__ if getattr(package, name).__name__ != name] == []


def test_settings_need_no_torch() -> None:
    """A process that only checks settings does not pay for torch's import."""
    code = (
        "from holdfast.local_sgd import LocalSGDConfig as C; C(); sys.exit('torch' in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", f"import sys; {code}"], check=True)


@pytest.mark.parametrize(
    ("module", "most"), [("frameworks.ddp", 22), ("frameworks.fsdp2", 26)], ids=["ddp", "fsdp2"]
)
def test_a_round_of_fixed_replicas_reaches_few_modules(module: str, most: int) -> None:
    """A reader of a round opens no more; rosters and changes of members are not among them."""
    code = (
        "import importlib, sys; importlib.import_module(f'holdfast.local_sgd.{sys.argv[1]}'); "
        "print(*(n for n, m in sys.modules.items() if n.startswith('holdfast.local_sgd.') "
        "and not hasattr(m, '__path__')))"
    )
    command = [sys.executable, "-c", code, module]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    reached = done.stdout.split()
    assert f"holdfast.local_sgd.{module}" in reached
    assert len(reached) <= most, reached
