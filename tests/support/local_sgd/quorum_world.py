"""Training under FSDP2 in rounds without a barrier, and its replay: whole replicas in one process.

Belongs here: what the ranks of a world do and write down, and the formula that the notes must
follow. Does not belong here: the model (`tiny_model`), what is expected (tests/local_sgd/process).
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Mapping
from typing import Any

from checkpoints.forked_worlds import Jobs, serve
from local_sgd.fsdp2_facts import mesh_of
from local_sgd.fsdp2_training import configs_of, digests, optimizer_of, run_step
from local_sgd.tiny_model import loss_of, sharded, tiny_model, tokens_of


def pause(world: Mapping[str, Any], replica: int, step: int) -> None:
    """Take the time of a step: `seconds` by replica, and `pauses` of [replica, step, seconds]."""
    extra = sum(s for who, at, s in world.get("pauses", ()) if (who, at) == (replica, step))
    time.sleep(world["seconds"][replica] + extra)


def train(world: Mapping[str, Any], pipe: Any) -> None:
    """Train `steps` by replica, then until all are done; tell each round that this rank was in."""
    course = _Course(world, pipe)
    if course.run():
        course.finish()


class _Course:
    """The training of one rank, and its notes."""

    def __init__(self, world: Mapping[str, Any], pipe: Any) -> None:
        from holdfast.flash.checkpointer import Checkpointer
        from holdfast.local_sgd.fsdp2 import LocalSGD

        mesh = mesh_of(world)
        self._world, self._pipe, self._at = world, pipe, tuple(mesh.get_coordinate())
        self._model = sharded(tiny_model({}), mesh["shard"], {})
        self._optimizer = optimizer_of(self._model, world)
        given, timeout = configs_of(world), world.get("timeout", 120.0)
        self._local = LocalSGD(self._model, self._optimizer, mesh, *given, timeout=timeout)
        self._flash = Checkpointer(world.get("root"), shards=self._local.shards())
        self._rounds, self._saves = list[dict[str, Any]](), list[dict[str, Any]]()
        start, clock = self._flash.load(), self._local.clock()
        pipe.send({"start": start, "loaded": digests(self._local), "loaded clock": clock})

    def run(self) -> bool:
        """Make all steps; False: one has failed."""
        from holdfast.local_sgd.sync.group import SyncError

        local, begun = self._local, time.monotonic()
        for step in range(self._world["steps"][self._at[0]]):
            pause(self._world, self._at[0], step)
            self._die(step)
            before = [one.round for one in local.units]
            try:
                run_step(self._world, self._model, self._optimizer, step, self._at)
            except SyncError as error:
                after = [one.round for one in local.units]
                self._pipe.send({"error of step": str(error), "before": before, "after": after})
                return False
            self._note()
        self._pipe.send({"seconds": time.monotonic() - begun})
        return True

    def finish(self) -> None:
        """Join the others' rounds; tell what became of this rank."""
        from holdfast.local_sgd.sync.group import SyncError

        local = self._local
        try:
            local.finish(self._note)
        except SyncError as error:
            self._pipe.send({"error at the end": str(error)})
        named = self._model.named_parameters()
        weights = {name: one.full_tensor().tolist() for name, one in named}
        self._pipe.send({"rounds": self._rounds, "weights": weights, "saves": self._saves})
        end = {key: one for key, one in digests(local).items() if key != "inner"}
        self._pipe.send({"detectors": sorted(local.units[0].detectors), "clock": local.clock()})
        self._pipe.send({"end": end})

    def _note(self) -> None:
        """Write down a round, and save where all replicas are."""
        local = self._local
        if local.outcomes:
            assert local.quorum is not None
            first = local.outcomes[0]
            told = {"round": first.round, "replicas": first.replicas, "weights": first.weights}
            self._rounds.append({**told, "step": local.steps, "missed": local.quorum.missed})
            local.outcomes = []
        if local.together and self._world.get("root"):
            self._flash.save(local.rounds)
            self._flash.wait()
            self._saves.append({"round": local.rounds, **digests(local)})

    def _die(self, step: int) -> None:
        if [self._at[0], step] == self._world.get("killed"):
            os.kill(os.getpid(), signal.SIGKILL)
        if [self._at[0], step] == self._world.get("dies_in_next_round"):
            die_in_a_round()


def die_in_a_round() -> None:
    """Have this rank be killed when it is in the list of a round, before the first transfer."""
    from holdfast.local_sgd import quorum_rounds

    def die(*_: Any) -> int:
        os.kill(os.getpid(), signal.SIGKILL)
        return 0

    changed: Any = quorum_rounds
    changed.catch_up = die


def refused(world: Mapping[str, Any], pipe: Any) -> None:
    """Ask for what is not done without a barrier; tell the messages."""
    from holdfast.local_sgd.config import LocalSGDConfig
    from holdfast.local_sgd.errors import LocalSGDError
    from holdfast.local_sgd.fsdp2 import LocalSGD

    mesh, said = mesh_of(world), {}
    model = sharded(tiny_model({}), mesh["shard"], {})
    optimizer = optimizer_of(model, world)
    try:
        LocalSGD(model, optimizer, mesh, LocalSGDConfig(quorum=0.5))
    except LocalSGDError as error:
        said["by steps"] = str(error)
    config = LocalSGDConfig(quorum=0.5, use_async=True)
    local = LocalSGD(model, optimizer, mesh, config)
    try:
        local.regroup(mesh.get_group(0))
    except LocalSGDError as error:
        said["regroup"] = str(error)
    pipe.send(said)


def barrier(world: Mapping[str, Any], pipe: Any) -> None:
    """Train `steps` with a sync of gradients in each; tell the seconds."""
    from holdfast.local_sgd.fsdp2 import LocalSGD

    mesh = mesh_of(world)
    replica, shard = mesh.get_coordinate()
    model = sharded(tiny_model({}), mesh["shard"], {})
    optimizer = optimizer_of(model, world)
    LocalSGD(model, optimizer, mesh, *configs_of(world))
    begun = time.monotonic()
    for step in range(world["steps"][replica]):
        pause(world, replica, step)
        run_step(world, model, optimizer, step, (replica, shard))
    pipe.send({"seconds": time.monotonic() - begun})


def replay(world: Mapping[str, Any], pipe: Any) -> None:
    """Train whole replicas by what the ranks of `train` noted: `notes`, by replica."""
    replay = _Replay(world)
    for number in range(1, 1 + max(one["round"] for notes in world["notes"] for one in notes)):
        replay.make(number)
    weights = [{name: p.tolist() for name, p in m.named_parameters()} for m in replay.models]
    pipe.send({"weights": weights})


class _Replay:
    """The formula on whole parameters: no shard, no collective, no code of the engine."""

    def __init__(self, world: Mapping[str, Any]) -> None:
        self._world = world
        self._config, outer, _ = configs_of(world)
        self._outer = outer.outer_optim_kwargs
        count = len(world["notes"])
        self.models = [tiny_model({}) for _ in range(count)]
        self._optimizers = [optimizer_of(model, world) for model in self.models]
        self._steps, self._rounds = [0] * count, [0] * count
        self._work = [0.0] * count
        first = [one.detach().clone() for one in self.models[0].parameters()]
        self._anchors, self._momentum = [first] * count, [0.0 * one for one in first]

    def make(self, number: int) -> None:
        """Make one round, from the weights of all who noted it."""
        import torch

        noted = {
            replica: one
            for replica, notes in enumerate(self._world["notes"])
            for one in notes
            if one["round"] == number
        }
        for replica, one in noted.items():
            assert sorted(noted) == one["replicas"], "all who are in a round say so"
            self._train(replica, one["step"])
        newest = next(self._anchors[one] for one in noted if self._rounds[one] == number - 1)
        with torch.no_grad():
            deltas = {one: self._delta(one, number) for one in noted}
            total = sum(self._work[one] for one in noted) or 1.0
            shares = [self._work[one] / total for one in noted]
            told = next(iter(noted.values()))["weights"]
            assert all(abs(a - b) < 1e-12 for a, b in zip(shares, told, strict=True)), told
            parts = zip(shares, deltas.values(), strict=True)
            means = [sum(column) for column in zip(*_scaled(parts), strict=True)]
            self._step(newest, means, list(noted), number)

    def _train(self, replica: int, until: int) -> None:
        shards = self._world["mesh"][1]
        for step in range(self._steps[replica], until):
            import torch

            tokens = [tokens_of(step, 0, replica, shard) for shard in range(shards)]
            loss_of(self.models[replica], torch.cat(tokens)).backward()
            self._optimizers[replica].step()
            self._optimizers[replica].zero_grad()
        self._work[replica] += until - self._steps[replica]
        self._steps[replica] = until

    def _delta(self, replica: int, number: int) -> list[Any]:
        """Return what a replica brings, discounted for each round that it has missed."""
        missed = number - 1 - self._rounds[replica]
        factor = self._config.late_discount**missed
        self._work[replica] *= factor
        held = zip(self._anchors[replica], self.models[replica].parameters(), strict=True)
        return [factor * (anchor - weight) for anchor, weight in held]

    def _step(self, anchors: list[Any], means: list[Any], there: list[int], number: int) -> None:
        lr, momentum = self._outer["lr"], self._outer["momentum"]
        fresh = anchors
        if any(self._work[one] for one in there):
            pairs = zip(self._momentum, means, strict=True)
            self._momentum = [momentum * v + mean for v, mean in pairs]
            triples = zip(anchors, means, self._momentum, strict=True)
            fresh = [anchor - lr * (mean + momentum * v) for anchor, mean, v in triples]
        for replica in there:
            self._anchors[replica], self._rounds[replica] = fresh, number
            self._work[replica] = 0.0
            for weight, anchor in zip(self.models[replica].parameters(), fresh, strict=True):
                weight.copy_(anchor)


def _scaled(parts: Any) -> list[list[Any]]:
    return [[share * one for one in delta] for share, delta in parts]


_JOBS: Jobs = {"train": train, "barrier": barrier, "replay": replay, "refused": refused}

if __name__ == "__main__":
    serve(_JOBS)
