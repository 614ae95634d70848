"""Cases of a test that a run looks at: some of many like ones, chosen anew by each run.

Belongs here: the choice. `make test-all` runs all cases, `make test-matrix` those of frameworks.
Where one case finds what no other does, it is no like one: it has its place in each run.
"""

from __future__ import annotations

import os
import random
from collections.abc import Sequence
from typing import Final, TypeVar

WHOLE: Final = "MATRIX_WHOLE"
"""Variable that, if set, has all cases run."""
SEED: Final = "MATRIX_SEED"
"""Variable with the seed of the choice; tests/conftest.py sets it for all workers of a run."""

_T = TypeVar("_T")


def sampled(cases: Sequence[_T], count: int) -> list[_T]:
    """Return `count` of the cases, in their order; all of them if the whole matrix is wanted."""
    if os.environ.get(WHOLE):
        return list(cases)
    chosen = random.Random(int(os.environ[SEED])).sample(range(len(cases)), count)
    return [cases[number] for number in sorted(chosen)]
