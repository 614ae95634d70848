"""Seeded traces of training: local times of each rank in each step, and the truth about them.

Belongs here: the model of a job and of its faults. Does not belong here: the rules that look at a
trace (`rules`), traces of real processes (`recorder`).

A trace of a seed depends on nothing else, so anybody can make the published ones. The model:
local = design × drift × shared change × noise × work + pauses, times the slowdown of a slow rank.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float32]
Flags = npt.NDArray[np.bool_]
Numbers = npt.NDArray[np.int64]
Rng = np.random.Generator

GRID = 50
"""Steps between two points of a slow drift, which is interpolated."""
LEAST_PERCENT, MOST_PERCENT = 25.0, 200.0
"""Slowdowns of slow ranks, in percent of a step."""
EARLIEST = 200
"""First step of a slowdown that is not there from the start."""
VISIBLE_PERCENT = 20.0
"""A slowdown that grows counts from here on."""


@dataclasses.dataclass(slots=True, kw_only=True)
class Trace:
    """One job. Arrays have the shape [steps, ranks], or the one that they name."""

    seed: int
    kind: str
    node: Numbers
    """[ranks]: node of each rank."""
    local: Floats
    """Local time, s."""
    transfer: Floats
    """[steps]: time of the collectives, which all ranks share, s."""
    reference: Floats
    """[nodes]: seconds of a fixed task on each node at the job's start."""
    marked: Flags
    """[steps]: a checkpoint or an evaluation that the script declares."""
    work: Floats | None = None
    """Tokens; None: the script does not say."""
    late: Floats | None = None
    """Part of the local time that is communication, s; None: nobody measures it."""
    peers: Numbers | None = None
    """[ranks]: the set of ranks that do the same by design; None: not known."""
    slow: Flags = dataclasses.field(default_factory=lambda: np.zeros(0, bool))
    """[ranks]: the truth."""
    onset: int = 0
    """First step of the slowdown."""
    percent: float = 0.0
    """The slowdown, of a step."""

    @property
    def wall(self) -> Floats:
        """Return the wall time of each step, s."""
        wall: Floats = self.local.max(axis=1) + self.transfer
        return wall

    @property
    def slow_nodes(self) -> Flags:
        """Return the truth by node."""
        found = np.zeros(len(self.reference), bool)
        found[self.node[self.slow]] = True
        return found


def make(seed: int) -> Trace:
    """Return the trace of a seed; its kind is drawn, too."""
    rng = np.random.default_rng(seed)
    names, weights = zip(*KINDS.items(), strict=True)
    shares = np.array([one.weight for one in weights])
    kind = names[rng.choice(len(names), p=shares / shares.sum())]
    return KINDS[kind].make(rng, seed, kind)


# ----------------------------------------------------------------------------------- a quiet job


def _job(rng: Rng, seed: int, kind: str, *, nodes: int = 0, per_node: int = 0) -> Trace:
    """Return a job without any fault: nodes differ by up to a few percent, and drift."""
    nodes = nodes or int(2 ** rng.uniform(1, 6.01))
    per_node = per_node or int(rng.choice((1, 1, 1, 2, 8) if nodes <= 8 else (1,)))
    steps, ranks = int(rng.integers(1200, 2600)), nodes * per_node
    node = np.repeat(np.arange(nodes), per_node)
    length = 2 ** rng.uniform(0, 5)
    share = rng.uniform(0.03, 0.3)
    lottery = 1 + rng.uniform(0, 0.02) * rng.standard_normal(nodes)
    drift = 1 + _drift(rng, steps, nodes, rng.uniform(0, 0.015))
    noise = rng.uniform(0.004, 0.04)
    local = np.exp(noise * rng.standard_normal((steps, ranks), dtype=np.float32))
    local *= (length * (1 - share) * lottery * drift)[:, node].astype(np.float32)
    hiccup = rng.random((steps, ranks), dtype=np.float32) < rng.uniform(0, 0.01)
    local[hiccup] *= rng.uniform(1.1, 3.0, hiccup.sum()).astype(np.float32)
    wobble = np.exp(0.1 * rng.standard_normal(steps, dtype=np.float32))
    trace = Trace(
        seed=seed,
        kind=kind,
        node=node,
        local=local,
        transfer=(length * share * wobble).astype(np.float32),
        reference=(lottery * (1 + 0.01 * rng.standard_normal(nodes))).astype(np.float32),
        marked=np.zeros(steps, bool),
        peers=np.zeros(ranks, np.int64) if rng.random() < 0.5 else None,
        slow=np.zeros(ranks, bool),
        onset=steps,
    )
    _compilation(rng, trace, 0)
    return trace


def _drift(rng: Rng, steps: int, columns: int, size: float) -> npt.NDArray[np.float64]:
    """Return a slow drift: an autoregressive process of about 300 steps."""
    points = steps // GRID + 2
    keep = np.exp(-GRID / 300)
    grid = np.empty((points, columns))
    grid[0] = rng.standard_normal(columns)
    for i in range(1, points):
        grid[i] = keep * grid[i - 1] + np.sqrt(1 - keep * keep) * rng.standard_normal(columns)
    at = np.arange(steps) / GRID
    low = at.astype(int)
    part = (at - low)[:, None]
    drift: npt.NDArray[np.float64] = size * ((1 - part) * grid[low] + part * grid[low + 1])
    return drift


def _compilation(rng: Rng, trace: Trace, first: int) -> None:
    """The first steps are long, on each rank by another factor."""
    for i in range(int(rng.integers(1, 6))):
        trace.local[first + i] *= rng.uniform(2, 20) * rng.uniform(0.7, 1.3, len(trace.node))


# --------------------------------------------------------------------- what is not a straggler


def _gc(rng: Rng, trace: Trace) -> None:
    """Python's garbage collection: each rank pauses at steps of its own."""
    _, ranks = trace.local.shape
    usual = float(np.median(trace.local))
    for rank in range(ranks):
        period, first = int(rng.integers(8, 200)), int(rng.integers(0, 200))
        trace.local[first::period, rank] += usual * rng.uniform(0.2, 2.0)


def _checkpoint(rng: Rng, trace: Trace) -> None:
    """A save every so many steps: on all ranks, or on the first one of each node, or on rank 0."""
    period, usual = int(rng.integers(20, 300)), float(np.median(trace.local))
    first_of_node = np.unique(trace.node, return_index=True)[1]
    columns = (np.arange(len(trace.node)), first_of_node, np.zeros(1, int))[int(rng.integers(3))]
    rows = np.arange(int(rng.integers(10, period + 10)), len(trace.local), period)
    for row in rows.tolist():
        trace.local[row, columns] += usual * rng.uniform(0.5, 10)
    if rng.random() < 0.5:
        trace.marked[rows] = True


def _evaluation(rng: Rng, trace: Trace) -> None:
    """Steps that are an evaluation: of other length, on all ranks or (unfairly) on rank 0 only."""
    period, length = int(rng.integers(200, 600)), int(rng.integers(3, 40))
    alone = rng.random() < 0.2
    factor = rng.uniform(0.3, 3.0)
    declared = alone or rng.random() < 0.5
    for first in range(int(rng.integers(60, period)), len(trace.local) - length, period):
        rows = slice(first, first + length)
        columns = slice(0, 1) if alone else slice(None)
        trace.local[rows, columns] *= factor if not alone else 1 + factor
        if declared:
            trace.marked[rows] = True


def _thermal(rng: Rng, trace: Trace) -> None:
    """All devices throttle together, at some hours of the day."""
    at = np.arange(len(trace.local)) / rng.uniform(200, 1500)
    wave = 1 + rng.uniform(0.05, 0.4) * np.clip(np.sin(2 * np.pi * at), 0, 1)
    trace.local *= wave[:, None].astype(np.float32)


def _heat_of_nodes(rng: Rng, trace: Trace) -> None:
    """Each node throttles a little, at hours of its own: below the threshold of a straggler."""
    nodes = len(trace.reference)
    at = np.arange(len(trace.local))[:, None] / rng.uniform(200, 1500, nodes) + rng.random(nodes)
    wave = 1 + rng.uniform(0, 0.12, nodes) * np.clip(np.sin(2 * np.pi * at), 0, 1)
    trace.local *= wave[:, trace.node].astype(np.float32)


def _length(rng: Rng, trace: Trace) -> None:
    """Samples differ in length; some ranks always have the longer ones if the script says so."""
    steps, ranks = trace.local.shape
    work = np.exp(rng.uniform(0.05, 0.4) * rng.standard_normal((steps, ranks), dtype=np.float32))
    known = rng.random() < 0.6
    work *= np.exp(rng.uniform(0, 0.25 if known else 0.03) * rng.standard_normal(ranks))
    fixed = rng.uniform(0, 0.3)
    trace.local *= (fixed + (1 - fixed) * work).astype(np.float32)
    trace.work = (1000 * work).astype(np.float32) if known else None


def _stages(rng: Rng, trace: Trace) -> None:
    """Pipeline stages that are unequal by design: the embedding and the head cost more."""
    ranks = len(trace.node)
    stage = np.arange(ranks) * min(ranks, int(rng.choice((2, 4)))) // ranks
    cost = np.exp(rng.uniform(0.1, 0.5) * rng.standard_normal(stage.max() + 1))
    trace.local *= cost[stage].astype(np.float32)
    trace.peers = stage.astype(np.int64) if rng.random() < 0.5 else None


def _recompilation(rng: Rng, trace: Trace) -> None:
    """Another shape compiles anew in the middle, on all ranks."""
    _compilation(rng, trace, int(rng.integers(100, len(trace.local) - 10)))


def _disturbance(rng: Rng, trace: Trace) -> None:
    """A neighbour disturbs one node, for less than two windows of 50 steps."""
    for _ in range(int(rng.integers(1, 4))):
        node, first = rng.integers(trace.node.max() + 1), int(rng.integers(0, len(trace.local)))
        rows = slice(first, first + int(rng.integers(5, 90)))
        trace.local[rows, trace.node == node] *= rng.uniform(1.2, 2.0)


def _slow_network(rng: Rng, trace: Trace) -> None:
    """The network is slow for all ranks: a ring goes at the pace of its slowest link."""
    first = int(rng.integers(300, len(trace.local) - 300))
    trace.transfer[first:] *= rng.uniform(1.5, 6.0)


def _longer(rng: Rng, trace: Trace) -> None:
    """From some step on all have longer or shorter samples, and the script does not say so."""
    first = int(rng.integers(300, len(trace.local) - 300))
    trace.local[first:] *= np.exp(rng.uniform(-0.7, 0.7))


_Change = Callable[[Rng, Trace], None]
NUISANCES: tuple[_Change, ...] = (
    _gc,
    _checkpoint,
    _evaluation,
    _thermal,
    _heat_of_nodes,
    _length,
)


# -------------------------------------------------------------------------------- slow ones


def _slow(
    rng: Rng, trace: Trace, ranks: Flags, *, from_start: bool = False, grows: bool = False
) -> None:
    """Make ranks slow by so many percent of a step, from some step on."""
    steps = len(trace.local)
    percent = float(np.exp(rng.uniform(np.log(LEAST_PERCENT), np.log(MOST_PERCENT))))
    onset = 0 if from_start else int(rng.integers(EARLIEST, steps - 500))
    usual = np.median(trace.wall)
    extra = percent / 100 * usual / np.median(trace.local[:, ranks], axis=0)
    amount = np.zeros(steps, np.float32)
    amount[onset:] = 1
    if grows:
        length = int(rng.integers(100, 400))
        amount[onset : onset + length] = np.linspace(0, 1, length)
        onset += int(length * VISIBLE_PERCENT / percent)
    trace.local[:, ranks] *= 1 + amount[:, None] * extra.astype(np.float32)
    trace.slow, trace.onset, trace.percent = ranks, onset, percent
    if from_start:
        slow = np.unique(trace.node[ranks])
        trace.reference[slow] *= 1 + np.float32(extra.mean())


def _nodes(rng: Rng, trace: Trace, count: int) -> Flags:
    """Return the ranks of so many nodes."""
    chosen = rng.choice(len(trace.reference), count, replace=False)
    return np.isin(trace.node, chosen)


def _nuisance(rng: Rng, trace: Trace, share: float = 0.2) -> None:
    for change in NUISANCES:
        if rng.random() < share:
            change(rng, trace)


def _many(rng: Rng, trace: Trace) -> None:
    _nuisance(rng, trace, 0.5)


def _with(*changes: _Change) -> Callable[[Rng, int, str], Trace]:
    """Return the maker of a job that has these changes."""

    def made(rng: Rng, seed: int, kind: str) -> Trace:
        trace = _job(rng, seed, kind)
        for change in changes:
            change(rng, trace)
        return trace

    return made


def _one_of_eight(rng: Rng, seed: int, kind: str) -> Trace:
    nodes = int(rng.choice((1, 2, 4, 8)))
    trace = _job(rng, seed, kind, nodes=max(2, nodes), per_node=8 // max(2, nodes))
    _nuisance(rng, trace)
    _slow(rng, trace, np.arange(8) == rng.integers(8), grows=rng.random() < 0.2)
    return trace


def _some_nodes(count: Callable[[int], int], nodes: int = 0) -> Callable[[Rng, int, str], Trace]:
    def made(rng: Rng, seed: int, kind: str) -> Trace:
        trace = _job(rng, seed, kind, nodes=nodes or int(rng.choice((4, 6, 8, 16, 32))))
        _nuisance(rng, trace)
        _slow(rng, trace, _nodes(rng, trace, count(len(trace.reference))))
        return trace

    return made


def _from_start(rng: Rng, seed: int, kind: str) -> Trace:
    """Slow from the first step on, among ranks that do the same by design."""
    trace = _job(rng, seed, kind, nodes=int(rng.choice((4, 8, 16))))
    trace.peers = np.zeros(len(trace.node), np.int64)
    _slow(rng, trace, _nodes(rng, trace, 1), from_start=True)
    return trace


def _slow_stage(rng: Rng, seed: int, kind: str) -> Trace:
    """A slow node among pipeline stages that are unequal by design."""
    trace = _job(rng, seed, kind, nodes=int(rng.choice((4, 8, 16))))
    _stages(rng, trace)
    _slow(rng, trace, _nodes(rng, trace, 1))
    return trace


def _loader(rng: Rng, seed: int, kind: str) -> Trace:
    """A slow data loader: a rank waits for its batch in most steps, each time otherwise long."""
    trace = _job(rng, seed, kind)
    ranks = np.arange(len(trace.node)) == rng.integers(len(trace.node))
    percent = float(np.exp(rng.uniform(np.log(LEAST_PERCENT), np.log(MOST_PERCENT))))
    onset = int(rng.integers(EARLIEST, len(trace.local) - 500))
    waits = rng.gamma(4.0, 0.25, len(trace.local) - onset) * percent / 100 * np.median(trace.wall)
    trace.local[onset:, ranks] += waits[:, None].astype(np.float32)
    trace.slow, trace.onset, trace.percent = ranks, onset, percent
    return trace


def _link(rng: Rng, seed: int, kind: str) -> Trace:
    """One node's link is slow: its ranks leave each collective late, all others share the rest."""
    trace = _job(rng, seed, kind, nodes=int(rng.choice((2, 4, 8, 16))))
    ranks = _nodes(rng, trace, 1)
    before = trace.local[:, ranks].copy()
    _slow(rng, trace, ranks)
    late = np.zeros_like(trace.local)
    late[:, ranks] = trace.local[:, ranks] - before
    trace.transfer[trace.onset :] *= 1 + trace.percent / 200
    trace.late = late if rng.random() < 0.5 else None
    return trace


@dataclasses.dataclass(frozen=True, slots=True)
class Kind:
    """One kind of trace."""

    weight: float
    """How often it is drawn."""
    make: Callable[[Rng, int, str], Trace]
    slow: bool = False
    """True: a rank is slow in each trace of the kind."""


KINDS: Mapping[str, Kind] = {
    "quiet": Kind(20, _with()),
    "gc": Kind(6, _with(_gc)),
    "checkpoint": Kind(6, _with(_checkpoint)),
    "evaluation": Kind(6, _with(_evaluation)),
    "thermal": Kind(6, _with(_thermal)),
    "heat of single nodes": Kind(4, _with(_heat_of_nodes)),
    "length": Kind(7, _with(_length)),
    "stages": Kind(7, _with(_stages)),
    "recompilation": Kind(3, _with(_recompilation)),
    "disturbance": Kind(3, _with(_disturbance)),
    "slow network of all": Kind(3, _with(_slow_network)),
    "longer samples for all": Kind(3, _with(_longer)),
    "mixed": Kind(5, _with(_many)),
    "one slow rank of 8": Kind(7, _one_of_eight, slow=True),
    "one slow node": Kind(5, _some_nodes(lambda _: 1), slow=True),
    "one slow node of 2": Kind(4, _some_nodes(lambda _: 1, nodes=2), slow=True),
    "half of the nodes slow": Kind(4, _some_nodes(lambda nodes: nodes // 2), slow=True),
    "slow from the start": Kind(2, _from_start, slow=True),
    "slow node among stages": Kind(2, _slow_stage, slow=True),
    "slow data loader": Kind(3, _loader, slow=True),
    "slow link of a node": Kind(2, _link, slow=True),
}
