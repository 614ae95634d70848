"""Names of `holdfast.local_sgd`: each is there, and none brings torch with it before its use."""

from __future__ import annotations

import subprocess
import sys

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
