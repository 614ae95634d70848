"""Metric families of a job's figures. Pure: figures in, families out.

Every series has the labels `namespace` and `job`. No label grows with ranks: `node` names hosts
that something spoke against. Counters begin at 0 with each master.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, InfoMetricFamily, Metric

from holdfast_master.job.requests.figures import JobFigures
from holdfast_master.job.state.counts import SaveOutcome
from holdfast_master.policies.goodput import CLASSES, MICROS
from holdfast_wire import messages as wire
from holdfast_wire.tiers import TIERS, word

Labels = tuple[str, str]
"""Namespace and name of the job."""

_OWN: Final = ("namespace", "job")
_PREFIX: Final = "holdfast_job_"


def families(
    own: Labels, figures: JobFigures, goodput: Mapping[wire.GoodputClass, int]
) -> Iterator[Metric]:
    """Every family but those that are counted from facts (`recorded`).

    goodput: microseconds by class since this master began, none of which goes back.
    """
    yield _info(own, figures.status)
    yield from _progress(own, figures)
    yield from _world(own, figures)
    yield _counter(
        own,
        "goodput_seconds",
        "Node-seconds by class since this master began; each second of a node is in one class.",
        ("class",),
        [((kind.name.lower(),), goodput.get(kind, 0) / MICROS) for kind in CLASSES],
    )
    yield from _budgets(own, figures.status)
    yield from _checkpoints(own, figures)
    yield from _health(own, figures)


def _info(own: Labels, status: wire.JobStatus) -> Metric:
    family = InfoMetricFamily(
        "holdfast_job", "Phase of the job, its reason and its uid.", labels=_OWN
    )
    family.add_metric(
        own, {"phase": status.phase.name.lower(), "reason": status.reason, "uid": status.uid}
    )
    return family


def _progress(own: Labels, figures: JobFigures) -> Iterator[Metric]:
    status = figures.status
    yield _gauge(own, "step", "Newest step that all ranks have completed.", status.step)
    if status.has_loss:
        yield _gauge(own, "loss", "Loss that rank 0 reported with its newest step.", status.loss)
    yield _gauge(own, "step_seconds", "Usual time of a step, s; 0: not known.", status.step_seconds)
    yield _counter(
        own,
        "samples",
        "Samples that ranks reported since this master began.",
        (),
        [((), figures.counts.samples)],
    )


def _world(own: Labels, figures: JobFigures) -> Iterator[Metric]:
    status = figures.status
    yield _gauge(own, "world_nodes", "Nodes of the running world.", status.active_nodes)
    text = (
        "Nodes of a whole world: replicas in multiples of nodeUnit, standbys left out; of a queued "
        "job what its queue admits."
    )
    yield _gauge(own, "wanted_nodes", text, figures.wanted_nodes)
    yield _gauge(own, "min_nodes", "Least nodes of a world.", status.min_replicas)
    yield _gauge(
        own,
        "replicas",
        "Replicas that synchronise under local SGD; 0: the job is one world.",
        len(status.outer_replicas),
    )
    if figures.sync_seconds:
        text = "For how long the newest round of local SGD held up the rank that waited longest, s."
        yield _gauge(own, "sync_seconds", text, figures.sync_seconds)
    yield _gauge(
        own, "goodput_ratio", "Productive share of all node-seconds of the job.", status.goodput
    )
    for name, text, value in (
        ("restarts_in_place", "Rounds that were started on the same nodes.", "restarts_in_place"),
        ("nodes_replaced", "Nodes whose pod was made anew.", "nodes_replaced"),
        ("nodes_disrupted", "Nodes that were taken away.", "nodes_disrupted"),
        ("rescales", "Changes of the world's size.", "rescales"),
    ):
        yield _counter(own, name, f"{text} Over the whole job.", (), [((), getattr(status, value))])


def _budgets(own: Labels, status: wire.JobStatus) -> Iterator[Metric]:
    named = [((one.kind.name.lower(),), one) for one in status.budgets]
    yield _gauges(
        own,
        "budget_used",
        "Charges that count against a budget of failurePolicy now.",
        ("budget",),
        [(label, one.used) for label, one in named],
    )
    yield _gauges(
        own,
        "budget_limit",
        "Charges that a budget of failurePolicy allows.",
        ("budget",),
        [(label, one.limit) for label, one in named],
    )


def _checkpoints(own: Labels, figures: JobFigures) -> Iterator[Metric]:
    status, counts = figures.status, figures.counts
    yield _counter(
        own,
        "checkpoint_saves",
        "Steps that were saved to a tier, or could not be, since this master began.",
        ("tier", "outcome"),
        # Those that did not happen, too: an increase from nothing to 1 is none to Prometheus.
        [((word(t), end.value), counts.saves[t, end]) for t in TIERS for end in SaveOutcome],
    )
    yield _counter(
        own,
        "restores",
        "Starts from a checkpoint by its tier, since this master began.",
        ("tier",),
        [((word(tier),), counts.restores[tier]) for tier in TIERS],
    )
    if counts.stored_bytes:
        text = "Size of the newest step that this master saw committed, bytes."
        yield _gauge(own, "checkpoint_bytes", text, counts.stored_bytes)
    yield _gauges(
        own,
        "checkpoint_age_steps",
        "Steps since the newest one that a tier has, or since the world began; of a tier without "
        "any only where it has an interval.",
        ("tier",),
        [
            ((word(tier),), max(0, status.step - max(step, figures.first_step)))
            for tier, step in _newest(figures)
        ],
    )
    yield _gauges(
        own,
        "checkpoint_interval_steps",
        "Steps between saves to a tier, where the job's file or the master sets them.",
        ("tier",),
        [((word(tier),), every) for tier, every in figures.intervals.items()],
    )
    yield from _save_costs(own, figures)


def _newest(figures: JobFigures) -> Sequence[tuple[wire.Tier, int]]:
    """The newest step of each tier that has one, or should have."""
    memory, storage = figures.status.memory_step, figures.status.stored_step
    steps = ((wire.Tier.MEMORY, memory), (wire.Tier.STORAGE, storage))
    return [(tier, step) for tier, step in steps if step or tier in figures.intervals]


def _save_costs(own: Labels, figures: JobFigures) -> Iterator[Metric]:
    known = figures.saving.tiers if figures.saving is not None else {}
    yield _gauges(
        own,
        "checkpoint_stop_seconds",
        "How long a save to a tier stops training on the slowest node, s.",
        ("tier",),
        [((word(tier),), cost.stop) for tier, cost in known.items() if cost.stop],
    )
    yield _gauges(
        own,
        "checkpoint_save_seconds",
        "From a save to a tier until it is durable, on the slowest node, s.",
        ("tier",),
        [((word(tier),), cost.durable) for tier, cost in known.items() if cost.durable],
    )


def _health(own: Labels, figures: JobFigures) -> Iterator[Metric]:
    yield _gauge(own, "slow_ranks", "Ranks that straggler verdicts name.", figures.slow_ranks)
    text = "1: the running world makes no progress for longer than its limit."
    yield _gauge(own, "hang", text, int(figures.hangs))
    yield _gauges(
        own,
        "node_strikes",
        "Points against a host of the job; half of a strike's weight is gone after 6 hours.",
        ("node",),
        [((host,), points) for host, points in figures.strikes.items() if points > 0],
    )


# -------------------------------------------------------------------------------------- building

_Series = Sequence[tuple[tuple[str, ...], float]]


def _gauge(own: Labels, name: str, text: str, value: float) -> Metric:
    return _gauges(own, name, text, (), [((), value)])


def _gauges(own: Labels, name: str, text: str, labels: Sequence[str], series: _Series) -> Metric:
    family = GaugeMetricFamily(f"{_PREFIX}{name}", text, labels=(*_OWN, *labels))
    for values, value in series:
        family.add_metric((*own, *values), value)
    return family


def _counter(own: Labels, name: str, text: str, labels: Sequence[str], series: _Series) -> Metric:
    family = CounterMetricFamily(f"{_PREFIX}{name}", text, labels=(*_OWN, *labels))
    for values, value in series:
        family.add_metric((*own, *values), value)
    return family
