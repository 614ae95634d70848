"""Real training whose replicas are killed, frozen and added: the others neither restart nor lose.

Each test draws its seed, and names it where it fails.
"""

from __future__ import annotations

import random
from typing import Any

import pytest

from house.extended import usual
from local_sgd.elastic_runs import check_kept, run, start, steps_of

pytestmark = [pytest.mark.train, pytest.mark.timeout(300)]
MORE = pytest.mark.extended(
    "the end of a round is the same code under DDP",
    held_by=[
        "local_sgd/process/test_elastic_training.py::test_one_that_lost_the_end_of_a_round_goes_on_where_the_others_wait"
    ],
)


def check_own_state(told: dict[str, Any], joiner: int, why: str) -> None:
    """Hold what a joiner began with to moments and buffers that others have had at that step."""
    shards = [name for name in told["ranks"] if name.split()[0] == str(joiner)]
    for name in shards:
        (begun,) = [line for line in told["ranks"][name] if "begins with" in line]
        others = [
            line["state"]
            for other, lines in told["ranks"].items()
            if other.split()[1] == name.split()[1] and other != name
            for line in steps_of(lines)
            if line["step"] == begun["at"]
        ]
        for number, one in enumerate(begun["begins with"]):
            assert one in {state[number] for state in others}, f"unit {number}: {why}"


def killed_and_joined(**scenario: Any) -> tuple[dict[str, Any], int]:
    """Return what ranks of two a replica wrote down, held to what holds in any framework; the seed.

    A checkpointer that a replica has made before the changes saves and loads its state after them.
    """
    seed = random.randrange(10_000)
    given: dict[str, Any] = {"replicas": 3, "shards": 2, "saves": True, "states": True}
    told = run(scenario="campaign", events=["kill", "join"], seed=seed, **given, **scenario)
    why = f"seed {seed}: {told['done']}"
    check_kept(told, why)
    check_own_state(told, 3, why)
    for replica in told["members"]:
        (both,) = [line for line in told["ranks"][f"{replica} 0"] if "saved" in line]
        assert both["loaded"] == both["saved"], why
        assert both["start"] == both["saved"][2] > 0
    return told, seed


def ends(told: dict[str, Any]) -> list[float]:
    """Return the held-out loss of each rank of the last members."""
    losses = [
        line["held_out"] for lines in told["ranks"].values() for line in lines if "held_out" in line
    ]
    shards = len({name.split()[1] for name in told["ranks"]})
    assert len(losses) == len(told["members"]) * shards
    return losses


@pytest.mark.extended(
    "many losses and joins of one training: each kind has a test of its own",
    held_by=[
        "local_sgd/process/test_elastic_training.py::test_shards_of_a_replica_change_members_together",
        "local_sgd/process/test_elastic_members.py::test_four_replicas_become_two_and_then_six",
        "recovery/test_replicas.py::test_kills_at_any_instant_restart_one_replica_and_cost_the_others_no_step",
    ],
)
def test_a_campaign_of_losses_and_joins_restarts_nobody() -> None:
    """Two killed at one time, one that joins, one frozen while members change.

    After each round anchors and momentum are the same bits on all replicas, survivors and joiners
    alike. Two replicas are left for most of the time, and two see half of the data of four: the
    held-out loss ends between what two and four reach that nothing happens to. 33 rounds: after 15
    it wavers by 1.5 %, as much as the two differ.
    """
    seed = random.randrange(10_000)
    events = ["two", "join", "freeze"]
    told = run(scenario="campaign", events=events, seed=seed, every=10)
    why = f"seed {seed}: {told['done']}"
    check_kept(told, why)
    last = max(line.get("round", 0) for lines in told["ranks"].values() for line in lines)
    two, four = (
        ends(run(scenario="static", replicas=replicas, rounds=last, seed=seed))[0]
        for replicas in (2, 4)
    )
    assert len(set(ends(told))) == 1, why
    assert 0.97 * min(two, four) <= ends(told)[0] <= 1.03 * max(two, four), f"{two} {four} {why}"


def test_shards_of_a_replica_change_members_together() -> None:
    """Two shards a replica, whose ranks die a few ms apart: no shard goes on without the other.

    One that joins begins with the others' step count, learning rate and place in the data.
    """
    told, seed = killed_and_joined()
    for replica in told["members"]:
        one, other = (steps_of(told["ranks"][f"{replica} {shard}"]) for shard in (0, 1))
        assert [line["step"] for line in one] == [line["step"] for line in other], f"seed {seed}"
    first = steps_of(told["ranks"]["3 0"])[0]
    old = steps_of(told["ranks"][f"{told['members'][0]} 0"])
    twin = next(line for line in old if line["step"] == first["step"])
    assert first["joined"], f"seed {seed}"
    assert first["step"] > 5
    assert (first["place"], first["lr"]) == (twin["place"], pytest.approx(twin["lr"])), f"{seed}"


def test_a_ddp_that_is_kept_divides_by_its_own_ranks() -> None:
    """Each gradient, also the first after a loss, is the mean over the replica's two ranks."""
    told, seed = killed_and_joined(kind="ddp")
    for lines in told["ranks"].values():
        assert max(line["off"] for line in steps_of(lines)) < 1e-6, f"seed {seed}"


def test_who_comes_in_the_warm_up_waits_for_its_end() -> None:
    """The others do not wait for it; it begins with their weights at the first anchors."""
    told = run(
        scenario="early", event="join", replicas=2, warmup=60, pace=0.3, rounds=2, states=True
    )
    check_kept(told, str(told["done"]), least=2)
    check_own_state(told, 2, str(told["done"]))
    joiner, old = (steps_of(told["ranks"][f"{replica} 0"]) for replica in (2, 0))
    assert joiner[0]["step"] == 61
    assert [line["step"] for line in old][:61] == list(range(1, 62))


def test_replicas_in_eval_mode_come_and_go_as_others_do() -> None:
    """As where statistics are frozen: a joiner is at the others' step, place and rate at once."""
    seed = random.randrange(10_000)
    given: dict[str, Any] = {"events": ["kill", "join"], "every": 2, "interval": 3, "eval": True}
    told = run(scenario="campaign", replicas=3, seed=seed, **given)
    why = f"seed {seed}: {told['done']}"
    check_kept(told, why, least=5)
    assert steps_of(told["ranks"]["3 0"])[0]["joined"], why


def test_a_loss_in_the_warm_up_is_told_by_name() -> None:
    """Gradients of a step are lost with a replica: the error names the setting and the remedy."""
    ended = start(scenario="early", event="kill", replicas=2, warmup=400)
    assert ended.returncode != 0
    assert "WarmUpError: local_sgd_warmup_steps=400: a replica was lost after" in ended.stderr
    assert "start this replica again from the newest checkpoint" in ended.stderr


@pytest.mark.parametrize("kind", usual(["fsdp", "ddp"], "fsdp", more=MORE))
def test_one_that_lost_the_end_of_a_round_goes_on_where_the_others_wait(kind: str) -> None:
    """They have made the next steps alone; it and one that joins then begin at their step."""
    told = run(scenario="missed", kind=kind, replicas=3, misses=1)
    check_kept(told, str(told["done"]), least=5)
    lost, other = ({line["step"] for line in steps_of(told["ranks"][f"{one} 0"])} for one in (1, 0))
    assert other - lost
