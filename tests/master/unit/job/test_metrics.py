"""Metrics of a job: figures of the core, facts of the journal, and their text."""

from __future__ import annotations

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from holdfast_master.inputs import Received
from holdfast_master.instructions import Record
from holdfast_master.metrics.exporter import HighWater, MetricsExporter
from holdfast_wire import messages as wire
from holdfast_wire.messages import GoodputClass
from holdfast_wire.tiers import TIERS
from masters.checkpoint_words import Words
from simulation.steered.job import SteeredJob, job_spec, training
from simulation.steered.replicas import replicated

Samples = dict[tuple[str, frozenset[tuple[str, str]]], float]


def scraped(registry: CollectorRegistry) -> Samples:
    """Every sample of a scrape by its name and its labels, but for those that all have."""
    text = generate_latest(registry).decode()
    found: Samples = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            labels = dict(sample.labels)
            assert (labels.pop("namespace"), labels.pop("job")) == ("team", "llm"), sample
            found[sample.name.removeprefix("holdfast_job_"), frozenset(labels.items())] = (
                sample.value
            )
    return found


def exporter(job: SteeredJob) -> MetricsExporter:
    """The exporter of the newest master, with the facts that it has written so far."""
    made = MetricsExporter(("team", "llm"), lambda: job.core.figures(job.moment()))
    made.record([one for one in job.instructions if isinstance(one, Record)])
    return made


def value(samples: Samples, name: str, **labels: str) -> float:
    """One sample."""
    return samples[name, frozenset(labels.items())]


def test_a_training_job_shows_its_step_world_and_budgets() -> None:
    """The numbers are those of the status, which `holdfast status` prints."""
    job = training(3)
    samples = scraped(exporter(job).registry)
    status = job.core.status(job.moment())
    assert value(samples, "step") == status.step > 0
    assert value(samples, "world_nodes") == value(samples, "wanted_nodes") == 3
    assert value(samples, "hang") == value(samples, "slow_ranks") == 0
    assert value(samples, "budget_limit", budget="failures") == 1000
    info = [dict(labels) for name, labels in samples if name == "info"]
    assert info == [{"phase": "training", "reason": status.reason, "uid": status.uid}]


def test_a_recovery_counts_its_incident_and_the_seconds_of_each_phase() -> None:
    """The phases are seconds since the fault was seen, as `holdfast incidents` has them."""
    job = training(2)
    job.agents[1].crash(-9)
    job.run(60.0)
    samples = scraped(exporter(job).registry)
    [incident] = [one for one in job.core.incidents(job.moment()) if not one.open]
    assert value(samples, "incidents_total", cause=incident.cause) == 1
    for phase, seconds in (
        ("decided", incident.decided_seconds),
        ("respawned", incident.respawned_seconds),
        ("restored", incident.first_step_seconds),
    ):
        assert value(samples, "recovery_seconds_sum", phase=phase) == pytest.approx(seconds)
    assert value(samples, "budget_used", budget="failures") == len(job.charges())


def test_an_incident_that_is_written_twice_counts_once() -> None:
    """Its fact is written again with its cost."""
    job = training(2)
    found = exporter(job)
    fact = wire.Incident(id="1", cause="Rescaled", first_step_seconds=2.0)
    closed = Record(fact, durable=True, sequence=1, unix=0.0, job_seconds=0.0)
    found.record([closed, closed])
    assert value(scraped(found.registry), "incidents_total", cause="Rescaled") == 1


def test_saves_commits_and_failures_count_by_tier() -> None:
    """What agents report about checkpoints is counted once for the whole world."""
    job = training(2)
    found = exporter(job)

    def say(rank: int, message: object) -> None:
        session = job.agents[rank].session
        assert session is not None
        fence = wire.Fence(epoch=1, incarnation="m1", round=1)
        job.take(Received(session, fence, message))  # type: ignore[arg-type]

    before = scraped(found.registry)
    for step, error in ((1000, ""), (1001, "disk full")):
        version = wire.CheckpointVersion(lineage=1, step=step)
        for rank in (0, 1):
            say(rank, wire.MemoryCheckpoints(versions=(version,)))
        for rank in (0, 1):
            part = wire.ShardsPersisted(
                version=version, world_size=2, ranks=(rank,), root="/r", attempt="a", bytes=10
            )
            say(rank, part)
        grants = [one for _, one in job.sent if isinstance(one, wire.CommitGrant)]
        say(0, wire.CommitResult(version=version, own=grants[-1].own, error=error))
        say(1, wire.CommitResult(version=version, own=grants[-1].own, error=error))
    samples = scraped(found.registry)
    saves = {
        (tier, end): value(samples, "checkpoint_saves_total", tier=tier, outcome=end)
        - before.get(("checkpoint_saves_total", frozenset({("tier", tier), ("outcome", end)})), 0.0)
        for tier, end in (("memory", "complete"), ("storage", "complete"), ("storage", "failed"))
    }
    assert saves == {
        ("memory", "complete"): 2,
        ("storage", "complete"): 1,
        ("storage", "failed"): 1,
    }
    assert value(samples, "checkpoint_bytes") == 20


def _restore(words: Words, step: int) -> None:
    """Have both nodes ask, and take a step from storage."""
    version = wire.CheckpointVersion(lineage=0, step=step)
    offers = (wire.TierVersions(tier=wire.Tier.STORAGE, versions=(version,)),)
    for rank in (0, 1):
        words.say(rank, wire.RestoreRequest(offers=offers))
    for rank in (0, 1):
        number = words.told(wire.RestorePlan, rank)[-1].plan_id
        words.say(rank, wire.RestorePlanVerified(plan_id=number))


def test_a_restore_counts_once_by_the_tier_that_it_was_read_from() -> None:
    """Both nodes ask, and start from one checkpoint."""
    job = training(2)
    found, words = exporter(job), Words(job)
    _restore(words, 10)
    samples = scraped(found.registry)
    counts = {tier: value(samples, "restores_total", tier=tier) for tier in ("memory", "storage")}
    assert counts == {"memory": 0, "storage": 1}


def test_replicas_and_the_longest_sync_are_shown() -> None:
    """The rank that was held up longest counts; without replicas there is no sync."""
    job = replicated(3)
    samples = scraped(exporter(job).registry)
    assert value(samples, "replicas") == 3
    assert ("sync_seconds", frozenset()) not in samples
    for rank, agent in job.agents.items():
        current = agent.workers.current
        assert current is not None
        current.slot.sync_ns = (rank + 1) * 10**9
    job.run(5.0)
    assert value(scraped(exporter(job).registry), "sync_seconds") == 3


def test_a_tier_with_an_interval_in_the_job_s_file_has_an_age_before_its_first_save() -> None:
    """A script that never saves is what the alert about stale checkpoints is for."""
    intervals = (wire.TierInterval(tier=wire.Tier.STORAGE, every=5),)
    job = training(2, checkpoint=wire.CheckpointPolicy(intervals=intervals))
    job.run(10.0)
    samples = scraped(exporter(job).registry)
    assert value(samples, "checkpoint_interval_steps", tier="storage") == 5
    assert value(samples, "checkpoint_age_steps", tier="storage") == value(samples, "step") > 15
    assert ("checkpoint_age_steps", frozenset({("tier", "memory")})) not in samples


_EVERY_TIER = wire.CheckpointPolicy(
    intervals=tuple(wire.TierInterval(tier=tier, every=10) for tier in TIERS)
)


def test_a_restored_world_is_as_old_as_its_own_steps() -> None:
    """Memory has no step of its own yet: its age counts from the step that storage gave."""
    job = SteeredJob(job_spec(replicas=2, checkpoint=_EVERY_TIER))
    job.training.saved = 1000
    job.add_agents(2)
    job.run_until("STARTING")
    words = Words(job)
    _restore(words, 1000)
    for rank in (0, 1):
        words.say(rank, wire.Heartbeat(ranks=(wire.RankProgress(round=1, has_sdk=True),)))
    for made in (0, 1):
        samples = scraped(exporter(job).registry)
        assert value(samples, "step") == 1000 + made
        assert value(samples, "checkpoint_age_steps", tier="memory") == made
        job.run_until("TRAINING")


def test_the_age_of_a_tier_counts_from_the_step_that_the_world_began_from() -> None:
    """A script that restores by itself, and saves nothing: the steps since then are at risk."""
    job = SteeredJob(job_spec(replicas=2, checkpoint=_EVERY_TIER))
    job.training.saved = 1000
    job.add_agents(2)
    job.run_until("TRAINING")
    job.run(5.0)
    samples = scraped(exporter(job).registry)
    made = value(samples, "step") - 1000
    assert 30 < made < 100
    for tier in ("memory", "storage"):
        assert value(samples, "checkpoint_age_steps", tier=tier) == made


@pytest.mark.parametrize(
    ("changes", "wanted"),
    [
        ({"replicas": 4, "standbys": 1}, 4),
        ({"replicas": 5, "node_unit": 2}, 4),
        ({"replicas": 5, "nodes_per_replica": 2, "standbys": 1}, 4),
        ({"replicas": 7, "node_unit": 3, "nodes_per_replica": 3}, 6),
        ({"replicas": 3, "node_unit": 0}, 3),
    ],
)
def test_wanted_nodes_are_those_of_a_whole_world(changes: dict[str, int], wanted: int) -> None:
    """Standbys, and a rest that makes no unit, would leave every such job incomplete for ever."""
    job = SteeredJob(job_spec(**changes))
    assert value(scraped(exporter(job).registry), "wanted_nodes") == wanted


def test_goodput_counters_never_go_back_and_begin_with_their_master() -> None:
    """Prometheus takes a counter that falls for one that began anew, and adds all of it again."""
    good, lost = GoodputClass.PRODUCTIVE, GoodputClass.ROLLED_BACK
    counters = HighWater()
    assert counters.take([(good, 500)]) == {good: 0}
    assert counters.take([(good, 600)]) == {good: 100}
    assert counters.take([(good, 570), (lost, 30)]) == {good: 100, lost: 30}
    assert counters.take([(good, 650), (lost, 30)]) == {good: 150, lost: 30}


def test_series_do_not_grow_with_the_ranks_of_a_job() -> None:
    """A Prometheus has as many of a job of 8 nodes as of one of 2."""
    counts = [len(scraped(exporter(training(nodes)).registry)) for nodes in (2, 8)]
    assert counts[0] == counts[1] < 150
