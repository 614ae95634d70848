"""Members that a script gives: by environment, and with settings that they have not."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

from holdfast.local_sgd import OuterOptimPeriodicModelAverager
from holdfast.local_sgd.config import LocalSGDConfig
from holdfast.local_sgd.driver.changing import ChangingMembers, counts_to
from holdfast.local_sgd.errors import LocalSGDConfigError, LocalSGDError
from holdfast.local_sgd.megatron.groups import check_members
from holdfast.local_sgd.members.members import (
    MembersError,
    RosterMembers,
    StaticMembers,
    members_if_named,
    members_of_environment,
    mesh_of,
    roster_file,
)
from holdfast.local_sgd.policies.outer_roster import OuterRoster
from holdfast.local_sgd.sync.group import Group


@pytest.fixture
def world() -> Iterator[None]:
    """A default group of this process alone, as a replica of one rank has it."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.mark.parametrize(
    "given",
    [
        {"HOLDFAST_OUTER_ROSTER": "/x"},
        {"HOLDFAST_REPLICA": "1"},
        {"HOLDFAST_OUTER_ROSTER": "/x", "HOLDFAST_REPLICA": "one"},
    ],
)
def test_half_an_environment_is_told(given: dict[str, str]) -> None:
    """The error names both variables and their values."""
    with pytest.raises(MembersError, match=r"HOLDFAST_OUTER_ROSTER=.*HOLDFAST_REPLICA="):
        members_of_environment(environment=given)


@pytest.mark.usefixtures("world")
def test_an_agent_s_environment_gives_members_of_its_roster(tmp_path: Path) -> None:
    """They follow the file, say that they are ready, and have the replica's ranks as a mesh."""
    roster = tmp_path / "roster"
    given = {"HOLDFAST_OUTER_ROSTER": str(roster), "HOLDFAST_REPLICA": "4"}
    members = members_of_environment(environment=given)
    assert isinstance(members, RosterMembers)
    roster.write_text(OuterRoster(3, (4,), "127.0.0.1:1").to_text(), encoding="utf-8")
    found = members.refresh()
    assert found is not None
    assert (found.epoch, found.replicas, found.group.size, members.epoch) == (3, (4,), 1, 3)
    assert (tmp_path / "roster.ready-4-0").exists()
    assert mesh_of(members, "cpu").size() == 1
    with pytest.raises(ValueError, match="shards=2: this replica's world has 1 ranks"):
        members_of_environment(2, environment=given)


def test_a_patch_asks_for_members_that_an_agent_names() -> None:
    """Without an agent there are none, and half of its names is an error."""
    assert members_if_named({}) is None
    with pytest.raises(MembersError, match="HOLDFAST_REPLICA=''"):
        members_if_named({"HOLDFAST_OUTER_ROSTER": "/x"})


def test_members_of_another_replica_than_megatron_s_are_refused() -> None:
    """The error names both numbers of ranks, and what to set."""
    pair = Group.of_one()
    pair.size = 2
    with pytest.raises(LocalSGDError, match="has 2 ranks, Megatron's has 1: give each replica"):
        check_members(roster_members(pair), Group.of_one())


@pytest.mark.usefixtures("world")
def test_without_an_agent_members_are_fixed() -> None:
    """The default group is cut into replicas, here one of one rank."""
    members = members_of_environment(environment={})
    assert isinstance(members, StaticMembers)
    assert not members.changes
    found = members.refresh()
    assert found is not None
    assert found.replicas == (0,)


def roster_members(shards: Group | None = None) -> RosterMembers:
    """Return members of which no roster has come."""
    return RosterMembers(lambda: None, 0, shards or Group.of_one(), patience=0.01)


@pytest.mark.usefixtures("world")
def test_ddp_refuses_what_replicas_that_come_and_go_have_not() -> None:
    """A warm-up averages over all replicas; a DDP that spans them keeps the old divisor."""
    with pytest.raises(LocalSGDConfigError, match="local_sgd_warmup_steps=5: DDP averages"):
        OuterOptimPeriodicModelAverager(roster_members(), LocalSGDConfig(local_sgd_warmup_steps=5))
    pair = Group.of_one()
    pair.size = 2
    with pytest.raises(LocalSGDConfigError, match="a replica has 2 ranks and the default group 1"):
        OuterOptimPeriodicModelAverager(roster_members(pair))


def test_what_a_joiner_cannot_be_sent_is_told_at_once() -> None:
    """The name of what is carried, and its class."""

    class Odd:
        def state_dict(self) -> dict[str, Any]:
            return {"place": object()}

        def load_state_dict(self, state_dict: dict[str, Any], /) -> None:
            raise AssertionError(state_dict)

    replicas = ChangingMembers(roster_members())
    with pytest.raises(LocalSGDError, match=r"carry\('data'\): the state_dict\(\) of this Odd"):
        replicas.carry("data", Odd())


def test_members_without_a_roster_are_told_who_must_make_one() -> None:
    """Nobody published one in time: the error names the replica and the epoch."""
    with pytest.raises(MembersError, match="replica 0 found no roster from epoch 0 on"):
        roster_members().refresh()


def test_a_chain_of_schedulers_counts_as_its_first_one() -> None:
    """A chain has no count of its own; a joiner steps it all the same."""
    inner = torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], lr=0.1)
    one = torch.optim.lr_scheduler.ConstantLR(inner)
    chain = torch.optim.lr_scheduler.ChainedScheduler([one], inner)
    assert counts_to(0, chain)
    assert not counts_to(1, chain)


def test_rosters_that_follow_at_once_are_all_seen(tmp_path: Path) -> None:
    """Each replaces the file before within a tick of its clock, at the same length."""
    path = tmp_path / "roster"
    read = roster_file(path)
    assert read() is None
    for epoch in [*range(100, 400), 400, 400]:
        fresh = tmp_path / "roster.new"
        fresh.write_text(OuterRoster(epoch, (0, 1), "127.0.0.1:29500").to_text(), encoding="utf-8")
        fresh.replace(path)
        for _ in range(2):
            found = read()
            assert found is not None
            assert found.epoch == epoch


def test_a_roster_that_stays_is_parsed_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A rank that waits looks a thousand times a second."""
    path = tmp_path / "roster"
    path.write_text(OuterRoster(3, (0,), "127.0.0.1:29500").to_text(), encoding="utf-8")
    os.utime(path, ns=(0, 0))
    read = roster_file(path)
    first = read()
    monkeypatch.setattr(OuterRoster, "from_text", lambda _: pytest.fail("it is parsed again"))
    assert read() is first is not None
