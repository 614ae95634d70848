"""The simulation finds bugs: each of these, planted into the real code, on the suite's own seeds.

Most are faults that other projects have had. A bug that hides for two minutes on one core fails
its test; most are found within a second.
"""

from __future__ import annotations

import time

import pytest

from simulation.planted import BUGS, planted
from simulation.run import run
from simulation.scenario import draw

LIMIT_SECONDS = 110.0
pytestmark = pytest.mark.slow


@pytest.mark.parametrize("name", BUGS)
def test_a_planted_bug_is_found(name: str, record_property: pytest.FixtureRequest) -> None:
    """Within two minutes; the seed and the time that it took are recorded."""
    begin = time.process_time()
    seed = 0
    with planted(BUGS[name]):
        while (outcome := run(draw(seed))).ok:
            seed += 1
            spent = time.process_time() - begin
            assert spent < LIMIT_SECONDS, f"{name} ({BUGS[name].what}): not in {seed} seeds"
    record_property("seed", seed)  # type: ignore[operator]
    record_property("seconds", round(time.process_time() - begin, 1))  # type: ignore[operator]
    print(f"{name}: seed {seed}, {time.process_time() - begin:.1f} s: {outcome.text}")


def test_the_code_is_whole_again_afterwards() -> None:
    """A planted bug does not outlive its test."""
    for bug in BUGS.values():
        patches = bug.patches()
        before = [vars(owner)[name] for owner, name, _ in patches]
        with planted(bug):
            during = [vars(owner)[name] for owner, name, _ in patches]
        after = [vars(owner)[name] for owner, name, _ in patches]
        assert after == before
        assert during != before
