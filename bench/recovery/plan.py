"""Plan of the trials: their number and their order. Pure.

Trials are interleaved: one repetition of every row, then the next, so that a machine that slows
down or warms up does so for all. A row with fewer trials is spread over the whole run.
"""

from collections.abc import Collection, Iterable
from dataclasses import dataclass

from bench.recovery.results import OURS, Case

DEFAULT_LIMIT_SECONDS = 90.0
"""For a peer with its own time-outs: longer than any of them that a recovery waits for."""
TUNED_LIMIT_SECONDS = 30.0
"""For a peer with its time-outs as low as it accepts, and for Holdfast."""
UNNOTICED_LIMIT_SECONDS = 20.0
"""For a fault that a peer has no means to notice while its workers train on."""

EITHER = -1
"""Target: rank 0 in even repetitions, rank 1 in odd ones."""


@dataclass(frozen=True, slots=True)
class Trials:
    """One scenario under one system."""

    scenario: str
    system: str
    variant: str
    trials: int
    target: int = EITHER
    restore: str = "torch"
    limit_s: float = 0.0
    """0: that of the variant."""
    seconds: float = 20.0
    """Seconds of one trial on an idle machine of two cores, start included; for the estimate."""

    def case(self, repetition: int) -> Case:
        """Return the trial of this ``repetition``."""
        waits = self.variant == "default" and self.system != OURS
        usual = DEFAULT_LIMIT_SECONDS if waits else TUNED_LIMIT_SECONDS
        return Case(
            scenario=self.scenario,
            system=self.system,
            variant=self.variant,
            restore=self.restore,
            target=repetition % 2 if self.target == EITHER else self.target,
            repetition=repetition,
            limit_s=self.limit_s or usual,
        )


# A crash trial measures two crashes, a node-lost trial the loss and the return.
RECORD = (
    Trials("crash", "holdfast", "default", 4, seconds=9),
    Trials("crash", "torchrun", "default", 4, seconds=34),
    Trials("crash", "torchrun", "tuned", 4, seconds=20),
    Trials("crash", "dlrover", "default", 4, seconds=26),
    Trials("crash", "holdfast", "default", 4, restore="dcp", seconds=10),
    Trials("crash", "torchrun", "tuned", 2, restore="dcp", seconds=22),
    Trials("crash", "dlrover", "default", 2, restore="dcp", seconds=27),
    Trials("node-lost", "holdfast", "default", 8, target=0, seconds=13),
    Trials("node-lost", "torchrun", "default", 2, target=0, seconds=9),
    Trials("node-lost", "torchrun", "tuned", 4, target=0, seconds=22),
    Trials("node-lost", "dlrover", "default", 1, target=0, seconds=90),
    Trials("node-lost", "dlrover", "tuned", 4, target=0, seconds=35),
    Trials("node-lost", "holdfast", "default", 8, target=1, seconds=13),
    Trials("node-lost", "torchrun", "default", 1, target=1, seconds=122),
    Trials("node-lost", "torchrun", "tuned", 4, target=1, seconds=22),
    Trials("node-lost", "dlrover", "tuned", 4, target=1, seconds=35),
    Trials("node-lost", "holdfast", "default", 8, restore="dcp", seconds=13),
    Trials("agent-frozen", "holdfast", "default", 8, seconds=15),
    Trials("agent-frozen", "torchrun", "tuned", 1, limit_s=UNNOTICED_LIMIT_SECONDS, seconds=28),
    Trials("agent-frozen", "dlrover", "tuned", 1, limit_s=UNNOTICED_LIMIT_SECONDS, seconds=32),
    Trials("node-frozen", "holdfast", "default", 4, seconds=15),
    Trials("node-frozen", "torchrun", "default", 1, seconds=98),
    Trials("node-frozen", "torchrun", "tuned", 2, seconds=19),
    Trials("node-frozen", "dlrover", "default", 1, seconds=102),
    Trials("node-frozen", "dlrover", "tuned", 2, seconds=27),
)
"""The run that the published page is made of: at most 35 min."""

QUICK = (
    Trials("crash", "holdfast", "default", 1, target=0, seconds=9),
    Trials("crash", "torchrun", "tuned", 1, target=0, seconds=20),
    Trials("crash", "dlrover", "default", 1, target=0, limit_s=TUNED_LIMIT_SECONDS, seconds=26),
    Trials("node-lost", "holdfast", "default", 1, target=1, seconds=13),
    Trials("node-lost", "torchrun", "tuned", 1, target=1, seconds=22),
    Trials("node-lost", "dlrover", "tuned", 1, target=1, seconds=35),
    Trials("agent-frozen", "holdfast", "default", 1, target=1, seconds=15),
)
"""Everything once, without the long waits: at most 6 min also on a busy machine."""

PLANS = {"record": RECORD, "quick": QUICK}


def chosen(
    rows: Iterable[Trials], systems: Collection[str] = (), scenarios: Collection[str] = ()
) -> list[Trials]:
    """Return the rows of these systems and scenarios; an empty choice leaves nothing out."""
    return [
        row
        for row in rows
        if (not systems or row.system in systems) and (not scenarios or row.scenario in scenarios)
    ]


def cases(rows: Iterable[Trials], repetitions: int | None = None) -> list[Case]:
    """Return the trials in their order; ``repetitions`` replaces every row's own number."""
    wanted = [(row, row.trials if repetitions is None else repetitions) for row in rows]
    most = max((trials for _, trials in wanted), default=0)
    ordered: list[Case] = []
    done = dict.fromkeys(range(len(wanted)), 0)
    for turn in range(1, most + 1):
        for index, (row, trials) in enumerate(wanted):
            # Spread: after `turn` of `most` turns a row has done its share of trials, rounded up.
            if done[index] < -(-turn * trials // most):
                ordered.append(row.case(done[index]))
                done[index] += 1
    return ordered


def estimate_s(rows: Iterable[Trials], repetitions: int | None = None) -> float:
    """Return how long a run of ``rows`` takes on an idle machine, seconds."""
    return sum(row.seconds * (row.trials if repetitions is None else repetitions) for row in rows)
