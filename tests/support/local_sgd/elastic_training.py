"""A rank of an elastic replica that trains: FSDP2 or DDP, with members that come and go.

Belongs here: model, data, loop, and what a rank writes down. Does not belong here: who is killed
and who comes (`elastic_jobs`).

Each step is a line of JSON in the rank's own log: what was lost of a killed rank is at most a line.
Replicas end together, after a number of outer rounds that they count alike.
"""

from __future__ import annotations

import copy
import hashlib
import json
import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

TOKENS: Final = 16
_LENGTH: Final = 12
STEP_SECONDS: Final = 0.08
"""Of each step, where replicas choose their interval: see `WorkClock`."""
OUTER: Final = {"lr": 0.7, "momentum": 0.8, "nesterov": True}


class Data:
    """Samples of a fixed Markov chain; each replica and step has its own."""

    def __init__(self) -> None:
        """Draw the chain."""
        import torch

        generator = torch.Generator().manual_seed(1)
        logits = 2.0 * torch.randn(TOKENS, TOKENS, generator=generator)
        self._chain = logits.softmax(dim=1)

    def rows(self, seed: int, count: int) -> Any:
        """Return sequences of tokens."""
        import torch

        generator = torch.Generator().manual_seed(seed)
        columns = [torch.randint(TOKENS, (count,), generator=generator)]
        for _ in range(_LENGTH):
            odds = self._chain[columns[-1]]
            columns.append(torch.multinomial(odds, 1, generator=generator).squeeze(1))
        return torch.stack(columns, dim=1)


class Place:
    """Steps of a replica's data: what a joiner is given of it."""

    step = 0

    def state_dict(self) -> dict[str, Any]:
        """Return the place: steps of each epoch, by its number."""
        return {"seen": {0: self.step}}

    def load_state_dict(self, state_dict: dict[str, Any], /) -> None:
        """Take the place of a replica that trains."""
        self.step = state_dict["seen"][0]


def model_of(width: int) -> Any:
    """Return embedding, blocks and head: the same weights in each process."""
    import torch
    from torch import nn

    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.up, self.down = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)

        def forward(self, x: Any) -> Any:
            return x + self.down(nn.functional.gelu(self.up(x)))

    class Chain(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed = nn.Embedding(TOKENS, width)
            self.blocks = nn.ModuleList(Block() for _ in range(3))
            self.head = nn.Linear(width, TOKENS)
            self.seen: torch.Tensor
            self.register_buffer("seen", torch.zeros(width))

        def forward(self, tokens: Any) -> Any:
            x = self.embed(tokens)
            if self.training:
                self.seen.lerp_(x.detach().mean(dim=(0, 1)), 0.1)
            for block in self.blocks:
                x = block(x)
            return self.head(x)

    torch.manual_seed(os.getpid())  # replicas begin unlike: the first gives its weights to all
    return Chain()


def loss_of(model: Any, rows: Any) -> Any:
    """Return the loss of predicting each next token."""
    from torch.nn import functional

    return functional.cross_entropy(model(rows[:, :-1]).flatten(0, 1), rows[:, 1:].flatten())


class WorkClock:
    """Seconds that steps and reductions take by what the scenario says, whatever they really take.

    On a busy machine a step of some ms takes hundreds: by the real clock a choice would follow what
    else runs there.
    """

    def __init__(self) -> None:
        """Begin."""
        self._now = 1.0

    def __call__(self) -> float:
        """Return the time."""
        return self._now

    def takes(self, seconds: float) -> None:
        """Let some work take its time."""
        self._now += seconds


class Job:
    """Model, inner optimizer and local SGD of one rank, under either framework."""

    def __init__(self, scenario: Mapping[str, Any], members: Any) -> None:
        """Make them: a collective of all members."""
        import torch

        from holdfast.local_sgd.config import LocalSGDConfig, OuterOptimizerConfig

        self.scenario, self.members = scenario, members
        self.model: Any = model_of(scenario["width"])
        config = LocalSGDConfig(
            local_sgd_sync_interval=scenario["interval"],
            local_sgd_warmup_steps=scenario.get("warmup", 0),
            **scenario.get("config", {}),
        )
        outer = OuterOptimizerConfig(torch.optim.SGD, OUTER)
        self.is_fsdp = scenario["kind"] == "fsdp"
        self.place = Place()
        if self.is_fsdp:
            self._shard(members)
            self.optimizer: Any = self._inner()
            self._begin_fsdp(members, config, outer)
        else:
            self._begin_ddp(members, config, outer)
        self.work = WorkClock()
        if "slow" in scenario:
            self._slow_down(self._local.driver.unit_sync, scenario["slow"])
            self._local.driver.when._clock = self.work
        self.model.train(not scenario.get("eval"))
        self.schedule = _schedule(self.inner)
        self._local.carry("schedule", self.schedule)
        self._local.carry("place", self.place)

    def _inner(self) -> Any:
        import torch

        self.inner = torch.optim.AdamW(self.model.parameters(), lr=1e-2)
        return self.inner

    def _shard(self, members: Any) -> None:
        from torch.distributed.fsdp import fully_shard

        from holdfast.local_sgd import mesh_of

        mesh = mesh_of(members, "cpu")
        for block in self.model.blocks:
            fully_shard(block, mesh=mesh)
        fully_shard(self.model, mesh=mesh)

    def _begin_fsdp(self, members: Any, config: Any, outer: Any) -> None:
        from holdfast.local_sgd import LocalSGD

        self._local: Any = LocalSGD(self.model, self.optimizer, members, config, outer)

    def _slow_down(self, sync: Any, seconds: float) -> None:
        """Let each unit's reduction take so long, as on a slow link."""
        finish = sync.finish

        def finish_late(pending: Any) -> Any:
            self.work.takes(seconds)
            return finish(pending)

        sync.finish = finish_late

    def _begin_ddp(self, members: Any, config: Any, outer: Any) -> None:
        from torch.nn.parallel import DistributedDataParallel

        from holdfast.local_sgd import (
            OuterOptimPeriodicModelAverager,
            StatefulPostLocalSGDOptimizer,
        )

        self.model = DistributedDataParallel(self.model, broadcast_buffers=False)
        self._local = OuterOptimPeriodicModelAverager(members, config, None, outer)
        self.optimizer = StatefulPostLocalSGDOptimizer(self._inner(), self._local)
        self._local.carry_buffers(self.model)

    @property
    def rounds(self) -> int:
        """Outer rounds that are over."""
        return min((unit.round for unit in self._local.units), default=0)

    @property
    def joined(self) -> bool:
        """It came later, and has the others' state."""
        return bool(self._local.joined)

    @property
    def steps(self) -> int:
        """Of the inner optimizer, with those that a joiner was given."""
        return int(self._local.steps)

    @property
    def agreed(self) -> list[int]:
        """Interval, votes, round and step of the choice, where replicas choose."""
        found = self._local.driver.when.agreed
        return [found.interval, found.votes, found.round, found.step] if found.interval else []

    def miss_a_change(self, path: Path) -> None:
        """Lose the round of the first change, whose first unit the others finish; tell by a file.

        So it is where a connection of this rank breaks when it has sent all that others wait for.
        """
        from holdfast.local_sgd.sync.group import SyncError

        sync, switch = self._local.driver.unit_sync, self._local.driver.when
        finish = sync.finish

        def cut_short(pending: Any) -> Any:
            ahead = copy.copy(switch)
            ahead._report = lambda _: None
            if pending.with_reports[0]:
                ahead.received(pending.with_reports, pending.units[0].round + 1)
            if ahead.running.interval != switch.running.interval and not path.exists():
                pending.reduction()
                path.touch()
                raise SyncError("a connection broke")
            return finish(pending)

        sync.finish = cut_short

    def lose_an_end(self, path: Path) -> None:
        """Lose the end of the third round, which the others have; tell by a file."""
        from holdfast.local_sgd.sync.group import SyncError

        sync, last = self._local.driver.unit_sync, self._local.units[-1]
        finish = sync.finish

        def cut_short(pending: Any) -> Any:
            if last in pending.units and last.round == 2 and not path.exists():
                pending.reduction()
                path.touch()
                raise SyncError("a connection broke")
            return finish(pending)

        sync.finish = cut_short

    def digest(self) -> str:
        """Return a hash of this rank's anchors and momentum."""
        found = hashlib.sha256()
        for unit in self._local.units:
            optimizer = unit.anchors.optimizer
            for anchor in unit.anchors.values:
                found.update(anchor.numpy().tobytes())
                for _, value in sorted(optimizer.state.get(anchor, {}).items()):
                    found.update(value.numpy().tobytes())
        return found.hexdigest()[:16]

    def own_state(self) -> list[str]:
        """Return hashes of each unit's moments, and of the buffers: what is this replica's own."""
        units = [[one] for group in self.inner.param_groups for one in group["params"]]
        if self.is_fsdp:
            units = [[one.parameter for one in unit.trained] for unit in self._local.trained]
        found = []
        for unit in units:
            states = [sorted((self.inner.state.get(one) or {}).items()) for one in unit]
            found.append(_hash_of([value for state in states for _, value in state]))
        return [*found, _hash_of([one for _, one in self.model.named_buffers()])]

    def checkpointer(self, path: str) -> Any:
        """Return one for this replica, before members change."""
        from holdfast.flash.checkpointer import Checkpointer

        shards = self._local.shards() if self.is_fsdp else self.optimizer.shards(self.model)
        return Checkpointer(path, shards=shards)

    def spoil(self) -> None:
        """Overwrite anchors and counters."""
        for unit in self._local.units:
            unit.round = 0
            for anchor in unit.anchors.values:
                anchor.fill_(9.0)
        self._local.driver.steps = 0

    def held_out(self) -> float:
        """Return the loss of the anchors on samples that no replica has; a collective of its own.

        Call it after the last round: the weights are the anchors and a few lone steps.
        """
        import torch

        for unit in self._local.units:
            unit.anchors.write_weights(unit.tensors())
        if self.is_fsdp:
            self.model.reshard()
        with torch.no_grad():
            return float(loss_of(self.model, Data().rows(7, 1000)))


def _hash_of(values: list[Any]) -> str:
    found = hashlib.sha256()
    for value in values:
        local = getattr(value, "_local_tensor", value)
        found.update(local.detach().numpy().tobytes())
    return found.hexdigest()[:8]


def _schedule(optimizer: Any) -> Any:
    """Return a warm-up with a decay behind it, whose state has numbers by number."""
    from torch.optim.lr_scheduler import LinearLR, MultiStepLR, SequentialLR

    rises = LinearLR(optimizer, 0.05, total_iters=20)
    falls = MultiStepLR(optimizer, list(range(20, 400, 10)), gamma=0.97)
    return SequentialLR(optimizer, [rises, falls], milestones=[20])


def run_rank(folder: Path, replica: int, shard: int, scenario: Mapping[str, Any]) -> None:
    """Be one rank: train until the replicas have made the scenario's rounds."""
    members = members_of(folder, replica, shard, scenario)
    with (folder / f"log-{replica}-{shard}").open("w", encoding="utf-8", buffering=1) as log:
        job = Job(scenario, members)
        if scenario.get("misses") == replica:
            miss = job.miss_a_change if job.agreed else job.lose_an_end
            miss(folder / "missed")
        saves = scenario.get("saves")
        flash = job.checkpointer(str(folder / f"flash-{replica}")) if saves else None
        _train(job, lambda: is_over(scenario, folder, job.rounds), (replica, shard), log)
        if flash is not None:
            log.write(json.dumps(_saved_and_loaded(job, flash)) + "\n")


def members_of(folder: Path, replica: int, shard: int, scenario: Mapping[str, Any]) -> Any:
    """Start this replica's own world, and return members that follow the roster's file."""
    import torch
    import torch.distributed as dist

    from holdfast.local_sgd.members.members import RosterMembers, Signals, roster_file
    from holdfast.local_sgd.sync.group import Group

    torch.set_num_threads(1)
    shards = scenario["shards"]
    world = {"RANK": shard, "LOCAL_RANK": shard, "WORLD_SIZE": shards, "LOCAL_WORLD_SIZE": shards}
    os.environ |= {name: str(value) for name, value in world.items()}
    inner = dist.FileStore(str(folder / f"inner-{replica}"), shards)
    dist.init_process_group("gloo", store=inner, rank=shard, world_size=shards)
    ready = folder / f"ready-{replica}-{shard}"
    return RosterMembers(
        roster_file(folder / "roster"),
        replica,
        Group(timeout=60.0),
        timeout=60.0,
        patience=60.0,
        signals=Signals(ready.touch),
    )


def is_over(scenario: Mapping[str, Any], folder: Path, rounds: int) -> bool:
    """Tell if the last round is made: the scenario's, or that of the file `stop`."""
    last: int = scenario["rounds"]
    if not last and (folder / "stop").exists():
        last = int((folder / "stop").read_text(encoding="utf-8"))
    return 0 < last <= rounds


def _train(job: Job, is_over: Callable[[], bool], me: tuple[int, int], log: Any) -> None:
    data, own, rounds = Data(), 0, job.rounds
    log.write(json.dumps({"at": job.steps, "begins with": job.own_state()}) + "\n")
    while not is_over():
        own += 1
        begun = time.monotonic()
        first = (job.place.step * 100 + me[0]) * 10
        seeds = [first + shard for shard in range(job.scenario["shards"])]
        loss = loss_of(job.model, data.rows(seeds[me[1]], job.scenario["rows"]))
        loss.backward()
        off = _off(job.model, data, seeds, job.scenario["rows"])
        time.sleep(job.scenario["pace"])
        job.work.takes(STEP_SECONDS)
        job.place.step += 1  # before the step: with DDP a joiner is told in it
        arrived = time.monotonic()
        job.optimizer.step()
        left = time.monotonic()
        job.optimizer.zero_grad()
        job.schedule.step()
        line: dict[str, Any] = {
            "pid": os.getpid(), "own": own, "step": job.steps, "place": job.place.step,
            "loss": loss.item(), "lr": job.inner.param_groups[0]["lr"], "joined": job.joined,
            "epoch": job.members.epoch, "off": off,
            "begun": begun, "arrived": arrived, "left": left,
        }  # fmt: skip
        if agreed := job.agreed:
            line["agreed"] = agreed
        if job.scenario.get("states"):
            line["state"] = job.own_state()
        if job.rounds != rounds:
            rounds = job.rounds
            line |= {"round": rounds, "digest": job.digest()}
        log.write(json.dumps(line) + "\n")
    log.write(json.dumps({"held_out": job.held_out()}) + "\n")


def _off(model: Any, data: Data, seeds: list[int], rows: int) -> float:
    """Return how far DDP's gradients are from the mean of its ranks', computed here; 0: FSDP2."""
    import torch

    inner = getattr(model, "module", None)
    if inner is None or len(seeds) == 1:
        return 0.0
    params = list(inner.parameters())
    losses = [loss_of(inner, data.rows(seed, rows)) for seed in seeds]
    wanted = torch.autograd.grad(torch.stack(losses).mean(), params)
    pairs = zip(params, wanted, strict=True)
    return max(float((param.grad - one).abs().max()) for param, one in pairs)


def _saved_and_loaded(job: Job, flash: Any) -> dict[str, Any]:
    """Return what there was at a save, and after a load over something else."""
    saved = [job.digest(), job.rounds, job.steps]
    flash.save(job.steps)
    flash.wait()
    job.spoil()
    start = flash.load()
    flash.close()
    return {"saved": saved, "loaded": [job.digest(), job.rounds, job.steps], "start": start}
