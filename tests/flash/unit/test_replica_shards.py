"""Replicas that differ: their names in a checkpoint, and what each of them is filled from."""

from __future__ import annotations

from typing import Any

import torch

from holdfast.flash.trainer.holders import Holders, describe, holders_of
from holdfast.flash.trainer.leaves import Leaves, ValueLeaf
from holdfast.flash.trainer.planner import RankPosition
from holdfast.flash.trainer.reshard import Filling, Stored
from holdfast.flash.trainer.shards import ReplicaShards, Together
from holdfast.flash.trainer.torch_shards import TorchShards

PLACE = RankPosition(rank=2, world=4, local_rank=0, local_world=1)


def _state() -> tuple[torch.nn.Module, torch.optim.Optimizer]:
    model = torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.BatchNorm1d(3))
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.ones(4, 2)).sum().backward()
    optimizer.step()
    return model, optimizer


def _leaves(replica: int, shard: int = 0) -> Leaves:
    model, optimizer = _state()
    leaves = Leaves()
    whole = TorchShards({"": model}, {"": optimizer})
    ReplicaShards(whole, replica, shard=shard).collect(leaves)
    return leaves


def test_the_first_replica_has_torch_s_names() -> None:
    """A reader that knows nothing of replicas finds weights and optimizer."""
    plain = Leaves()
    model, optimizer = _state()
    TorchShards({"": model}, {"": optimizer}).collect(plain)
    first = _leaves(0)
    assert [leaf.name for leaf in first.tensors] == [leaf.name for leaf in plain.tensors]
    assert [leaf.name for leaf in first.values] == [leaf.name for leaf in plain.values]


def test_another_replica_has_its_number_in_the_name() -> None:
    """Of its weights, optimizer and settings; buffers stay the rank's."""
    leaves = _leaves(2)
    for leaf in leaves.tensors:
        assert leaf.name.startswith("model." if leaf.buffer else "replicas.2.")
        assert leaf.name == ".".join(map(str, leaf.path))
    assert all(leaf.name.startswith("replicas.2.optimizer.") for leaf in leaves.values)


def test_only_the_first_rank_of_a_replica_stores_what_all_its_ranks_have() -> None:
    """A commit refuses a box that two ranks store."""
    for shard in (0, 1):
        stored = {leaf.stored for leaf in _leaves(1, shard).tensors if not leaf.buffer}
        assert stored == {shard == 0}


def test_weights_are_copied_before_training_goes_on() -> None:
    """A round writes them in the forward, while an overlapped save would copy them."""
    for leaf in _leaves(0).tensors:
        assert leaf.trained == (leaf.path[0] == "optimizer")


def test_ranks_learn_who_has_the_state_that_comes_later() -> None:
    """What an optimizer will keep for a parameter of one replica is known by its group."""
    told = [describe(_leaves(number)) for number in (0, 1)]
    holders = holders_of(told)
    path = ("replicas", "1", "optimizer", "state", "0.weight", "later")
    assert holders.of(".".join(path), path) == (1,)
    assert holders.of("model.0.weight", ("model", "0.weight")) == (0,)


class _Reader:
    """Shards that note what they find under plain names."""

    def __init__(self) -> None:
        self.found: dict[str, Any] = {}

    def collect(self, leaves: Leaves) -> None:
        leaves.values.append(ValueLeaf(("optimizer", "lr"), lambda: 1.0))

    def accept(self, filling: Filling) -> None:
        self.found = {name: filling.values.get(name) for name in ("optimizer.lr", "optimizer.b")}
        self.listed = [leaf.name for leaf in filling.leaves.values]

    def finish(self, *, partial: bool) -> None:
        self.finished = partial


def _filling() -> Filling:
    found = Stored()
    found.paths |= {
        "optimizer.lr": ("optimizer", "lr"),
        "optimizer.b": ("optimizer", "b"),
        "replicas.1.optimizer.lr": ("replicas", "1", "optimizer", "lr"),
    }
    filling = Filling(PLACE, Leaves(), found, Holders())
    filling.values.update({"optimizer.lr": 0.5, "optimizer.b": 3, "replicas.1.optimizer.lr": 0.25})
    return filling


def test_a_replica_is_filled_from_its_own_state_and_a_new_one_from_the_first_s() -> None:
    """Its own values hide the first replica's under the plain names."""
    for replica, expected in ((0, 0.5), (1, 0.25), (2, 0.5)):
        reader, filling = _Reader(), _filling()
        shards = ReplicaShards(reader, replica, shard=0)
        shards.accept(filling)
        assert reader.found == {"optimizer.lr": expected, "optimizer.b": 3}
        assert reader.listed == ["optimizer.lr"]
        assert shards.found == (replica < 2)


def test_parts_are_listed_and_filled_in_their_order() -> None:
    """Two `Shards` are one: the second completes what the first has filled."""
    calls: list[str] = []

    class Part(_Reader):
        def __init__(self, name: str) -> None:
            super().__init__()
            self._name = name

        def collect(self, leaves: Leaves) -> None:
            calls.append(f"{self._name} collect")

        def accept(self, filling: Filling) -> None:
            calls.append(f"{self._name} accept")

        def finish(self, *, partial: bool) -> None:
            calls.append(f"{self._name} finish {partial}")

    both = Together(Part("first"), Part("second"))
    both.collect(Leaves())
    both.accept(_filling())
    both.finish(partial=True)
    assert calls == [
        *("first collect", "second collect"),
        *("first accept", "second accept"),
        *("first finish True", "second finish True"),
    ]
