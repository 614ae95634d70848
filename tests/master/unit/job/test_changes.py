"""Changes: why the master looked at its decisions again."""

from __future__ import annotations

from checkpoints.walks import RESTORE, SAVE, entered
from holdfast_master.inputs import OperatorMessage
from holdfast_master.job.state.changes import Change, PendingChanges
from holdfast_wire import messages as wire
from masters.checkpoint_words import Words
from simulation.steered.job import SteeredJob, training


def _beat(job: SteeredJob) -> None:
    ranks = (wire.RankProgress(round=1, step=5, step_seconds=0.1, has_sdk=True),)
    job.say(0, wire.Heartbeat(ranks=ranks))


def test_a_batch_names_the_changes_that_led_to_another_look() -> None:
    """The end of a stream breaks no world; a lost pod does, and each cause is named."""
    job = training(2)
    job.agents[1].cut_off()
    job.time.run(job.time.now + 30.0, lambda: Change.NODE_GONE in job.core.reasons())
    assert list(job.core.reasons()) == [
        Change.NODE_GONE,
        Change.WORLD_BROKEN,
        Change.INCIDENT_JUDGED,
    ]
    assert job.context.worlds.broken


def test_a_heartbeat_of_a_world_that_trains_leads_to_no_look() -> None:
    """The reasons of the batch before are not shown for one that had none."""
    job = training(2)
    job.operator.change(checkpoint=wire.CheckpointPolicy(keep_last=9))
    assert "a spec arrived" in job.core.reasons()
    _beat(job)
    assert job.core.reasons() == ()


def test_a_master_that_stepped_down_looks_no_more() -> None:
    """A master that stepped down does not look at what it still hears."""
    job = training(2)
    context = job.context
    job.core.handle(job.word(0, wire.Heartbeat(), epoch=9), job.moment())
    assert context.stepped_down
    job.core.handle(OperatorMessage(wire.MasterSpec(generation=50, replicas=1)), job.moment())
    assert job.core.reasons() == ()


def test_every_change_that_waits_is_kept_once_and_in_order() -> None:
    """The number of reasons bounds a batch, however many deadlines it holds."""
    changes = PendingChanges()
    for _ in range(3):
        changes.add(Change.POD_SEEN)
        changes.add(Change.NODE_GONE)
        assert changes.waiting == [Change.POD_SEEN, Change.NODE_GONE]
        changes.take()
    assert changes.waiting == []
    assert changes.batch == [Change.POD_SEEN, Change.NODE_GONE]
    changes.begin()
    assert changes.batch == []


_IDLE_AT_A_DEATH = {
    "checkpoints.commits",
    "checkpoints.on_demand",
    "checkpoints.restore",
    "nodes.eligibility",
    "nodes.liveness",
    "nodes.rule_actions",
    "rescale.rescale",
    "takeover.adoption",
    "worlds.flush",
}
"""Modules of the job that have nothing to do when a worker dies and its nodes stay."""


def test_a_look_enters_no_policy_that_has_nothing_to_do() -> None:
    """From the end of a worker to the assignments of the next round only what acts is called."""
    job = training(2)
    death = job.word(1, wire.WorkerExited(rank=1, exit_code=-9))
    with entered("holdfast_master.job") as found:
        job.core.handle(death, job.moment())
    world = job.context.worlds.newest
    assert world is not None
    assert (world.round, world.assigned) == (2, True)
    assert {"incidents.incidents", "worlds.rounds", "worlds.assignment"} <= found
    assert found.isdisjoint(_IDLE_AT_A_DEATH)


_ASKED_IN_EACH_LOOK = {"job.worlds.stores", "job.worlds.digests"}
"""Beside the way: the stores of the next round, and what another master would need."""


def _acting(found: set[str]) -> set[str]:
    """Return the modules that decide or act, without values and the parts of the job's state."""
    parts = ("job.", "policies.")
    values = ("job.state.", "policies.rendezvous")
    acting = {name for name in found if name.startswith(parts) and not name.startswith(values)}
    return acting | (found & {"job.state.checkpoints"})


def test_a_commit_enters_only_the_modules_of_its_walk() -> None:
    """From the parts of two nodes to the announcement nothing is asked in vain."""
    job = training(2)
    words = Words(job)
    version = wire.CheckpointVersion(lineage=1, step=10)
    with entered("holdfast_master") as found:
        for rank in (0, 1):
            words.write(rank, wire.FlushToStorage(version=version, attempt="a"))
        words.commit()
    assert len(words.told(wire.CommitAnnounced)) == 2
    assert _acting(found) == SAVE.master | _ASKED_IN_EACH_LOOK


def test_a_restore_enters_only_the_modules_of_its_walk() -> None:
    """From the requests of two nodes to the start of all nothing is asked in vain."""
    job = training(2)
    words = Words(job)
    offers = (
        wire.TierVersions(
            tier=wire.Tier.STORAGE, versions=(wire.CheckpointVersion(lineage=0, step=10),)
        ),
    )
    with entered("holdfast_master") as found:
        for rank in (0, 1):
            words.say(rank, wire.RestoreRequest(offers=offers))
        for rank in (0, 1):
            number = words.told(wire.RestorePlan, rank)[-1].plan_id
            words.say(rank, wire.RestorePlanVerified(plan_id=number))
    assert [plan.go for plan in words.told(wire.RestorePlan)] == [False, False, True, True]
    assert _acting(found) == RESTORE.master | _ASKED_IN_EACH_LOOK
