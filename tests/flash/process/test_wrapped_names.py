"""Names do not depend on wrappers: what one wrapping of a model saved loads under every other."""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from checkpoints import wrapped_models

pytestmark = [pytest.mark.train, pytest.mark.timeout(300)]


def test_every_wrapping_loads_what_every_other_saved(tmp_path: Path) -> None:
    """Weights, buffers, moments and what follows of them, all pairs, by one rank in one process."""
    done = subprocess.run(
        [sys.executable, wrapped_models.__file__, tmp_path],
        check=False,
        capture_output=True,
        text=True,
        timeout=240,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    pairs = [f"{one} → {other}" for one, other in itertools.product(wrapped_models.KINDS, repeat=2)]
    assert found == dict.fromkeys(pairs, "equal")
