"""Names do not depend on wrappers: what one wrapping of a model saved loads under every other."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from checkpoints import wrapped_models
from house import forks

pytestmark = [pytest.mark.train, pytest.mark.timeout(300)]


def test_every_wrapping_loads_what_every_other_saved(tmp_path: Path) -> None:
    """Weights, buffers, moments and what follows of them, by one rank in one process."""
    command = [wrapped_models.__file__, str(tmp_path)]
    done = forks.run(command, env={**os.environ, "OMP_NUM_THREADS": "1"}, timeout=240)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    pairs = [f"{one} → {other}" for one, other in wrapped_models.PAIRS]
    assert found == dict.fromkeys(pairs, "equal")
