"""Plan of a run: the worlds of ranks, and the ways that each of them measures in turns. Pure."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

from bench.local_sgd import results as r

DDP: Final = "DDP"
TORCH: Final = "torch's PeriodicModelAverager, H = {}"
TORCHFT_AVERAGE: Final = "torchft's LocalSGD, H = {}"
TORCHFT_DILOCO: Final = "torchft's DiLoCo, H = {}"
NESTEROV: Final = {"lr": 0.7, "momentum": 0.8, "nesterov": True}
"""Of the outer optimizer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WayPlan:
    """One way, as a rank carries it out."""

    name: str
    kind: str
    """ "ddp", "torch" (its averager), "torchft", "edit" (under DDP), or "fsdp2"."""
    interval: int = 1
    steps: int = 64
    config: Mapping[str, Any] = field(default_factory=dict)
    """More settings of `LocalSGDConfig`."""
    outer: bool = True
    """With the outer optimizer."""
    seed: int = 0
    wild: Mapping[str, Any] = field(default_factory=dict)
    """A disturbance: `step`, `replica` (-1: all), `factor` of the learning rate ("nan")."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaWorld:
    """Ranks that carry out cases, one after another."""

    row: str
    group: str
    ranks: int
    turn: int
    cases: tuple[WayPlan, ...]
    mbit: float | None = None
    """Of each rank's link; None: not shaped."""
    networks: bool = False
    """Each rank has a network of its own."""
    compute_ms: float = 0.0
    """Of a step, slept."""


def edit(interval: int, steps: int, codec: str = "none", name: str = "") -> WayPlan:
    """Return EDiT under DDP."""
    said = "" if codec == "none" else f", {codec}"
    return WayPlan(
        name=name or f"EDiT, H = {interval}{said}",
        kind="edit",
        interval=interval,
        steps=steps,
        config={"codec": codec, "pseudo_gradnorm_reduce": True, "skip_anomaly": True},
    )


def torchs(interval: int, steps: int) -> WayPlan:
    """Return torch's own averager of post-local SGD."""
    return WayPlan(name=TORCH.format(interval), kind="torch", interval=interval, steps=steps)


def torchfts(interval: int, steps: int) -> tuple[WayPlan, WayPlan]:
    """Return torchft's plain averaging, and its DiLoCo with the outer optimizer of EDiT."""
    diloco = WayPlan(
        name=TORCHFT_DILOCO.format(interval), kind="torchft", interval=interval, steps=steps
    )
    name = TORCHFT_AVERAGE.format(interval)
    return replace(diloco, name=name, outer=False), diloco


def without(world: ReplicaWorld, kind: str) -> ReplicaWorld:
    """Return a world without the cases of a kind."""
    return replace(world, cases=tuple(one for one in world.cases if one.kind != kind))


def worlds(rows: tuple[str, ...], turns: range, seed: int) -> Iterator[ReplicaWorld]:
    """Yield the worlds of a run; the cases of each in an order drawn by the seed."""
    for turn in turns:
        if r.BYTES in rows and not turn:
            yield from (_bytes(ranks) for ranks in (2, 4))
        if r.LINKS in rows:
            yield from (_shuffled(one, seed) for one in _links(turn))
        if r.LOSS in rows:
            yield _shuffled(_loss(turn), seed)
        if r.ROBUST in rows:
            yield _robust(turn)
        if r.SLOW in rows:
            ways = _slow_ways()
            for way in random.Random(f"{seed} slow {turn}").sample(ways, len(ways)):
                yield slow_world(way, turn)


def _shuffled(world: ReplicaWorld, seed: int) -> ReplicaWorld:
    order = random.Random(f"{seed} {world.row} {world.group} {world.turn}")
    return replace(world, cases=tuple(order.sample(world.cases, len(world.cases))))


SLOW_GROUP: Final = "one of 4 replicas 4 times slow"
SLOWER: Final = 4
"""Times that its last replica is slower."""


def slow_world(way: WayPlan, turn: int, compute_ms: float = 50.0) -> ReplicaWorld:
    """Return the world of one way beside a slow replica; compute_ms: of a fast one's step."""
    return ReplicaWorld(
        row=r.SLOW, group=SLOW_GROUP, ranks=4, turn=turn, cases=(way,), compute_ms=compute_ms
    )


def _slow_ways(steps: int = 200) -> list[WayPlan]:
    """Return the ways; those that wait for the slow one make as many steps as it makes."""
    settings = {DDP: {"local_sgd_warmup_steps": 1_000_000}}
    settings["EDiT, H = 32"] = {"local_sgd_sync_interval": 32}
    waiting = [
        WayPlan(name=name, kind="fsdp2", steps=steps // SLOWER, config=config)
        for name, config in settings.items()
    ]
    return [*waiting, a_edit(steps, 32 * 0.05)]


def a_edit(steps: int, seconds: float) -> WayPlan:
    """Return A-EDiT under FSDP2, with the steps of a fast replica and the time of a round."""
    config = {"use_async": True, "local_sgd_sync_time": seconds}
    config |= {"min_total_global_steps": 1, "use_step_weight": True}
    return WayPlan(name="A-EDiT", kind="fsdp2", steps=steps, config=config)


def _bytes(ranks: int) -> ReplicaWorld:
    local = [edit(16, 32, codec) for codec in ("none", "bf16", "int8", "int4")]
    cases = (
        WayPlan(name=DDP, kind="ddp", steps=32),
        *local,
        edit(32, 64),
        edit(32, 64, "int8"),
        torchs(16, 32),
        *torchfts(16, 32),
    )
    group = f"{ranks} replicas"
    return ReplicaWorld(row=r.BYTES, group=group, ranks=ranks, turn=0, cases=cases, networks=True)


def _links(turn: int) -> Iterator[ReplicaWorld]:
    for mbit, ddp_steps, more in (
        (1000.0, 40, (torchs(16, 64),)),
        (100.0, 12, (torchs(16, 64), *torchfts(16, 64), edit(32, 64, "int8"))),
        (10.0, 3, (edit(32, 64, "int8"),)),
    ):
        cases = (WayPlan(name=DDP, kind="ddp", steps=ddp_steps), edit(16, 64), edit(32, 64), *more)
        yield ReplicaWorld(
            row=r.LINKS,
            group=f"{mbit:g} Mbit/s",
            ranks=2,
            turn=turn,
            cases=tuple(one for one in cases if mbit > 10 or one.interval != 16),
            mbit=mbit,
            networks=True,
            compute_ms=50.0,
        )


LENGTHS: Final = (640, 1280)
"""Steps after which losses are compared: by then H = 64 has made 9 rounds, and 19."""


def _loss(turn: int) -> ReplicaWorld:
    steps = max(LENGTHS)
    warm = {"local_sgd_warmup_steps": 64}
    local = [edit(interval, steps) for interval in (16, 32, 64)]
    local = [replace(one, config={**one.config, **warm, "ewma_warmup_steps": 8}) for one in local]
    others = (torchs(16, 640), torchfts(16, 640)[0], torchfts(32, 640)[1])
    beside = [replace(one, config=warm) for one in others]
    ddp = WayPlan(name=DDP, kind="ddp", steps=steps)
    cases = tuple(replace(one, seed=turn) for one in (ddp, *local, *beside))
    return ReplicaWorld(row=r.LOSS, group="4 replicas", ranks=4, turn=turn, cases=cases)


EQUAL: Final = "equal weights"
WEIGHTS: Final = "weights by norm alone"
ELIMINATION: Final = "elimination alone"
ALL: Final = "all of EDiT"
_WAYS: Final[Mapping[str, Mapping[str, Any]]] = {
    EQUAL: {},
    WEIGHTS: {"pseudo_gradnorm_reduce": True, "weight_softmax_temperature": 0.05},
    ELIMINATION: {"skip_anomaly": True, "ewma_warmup_steps": 8},
    ALL: {
        "pseudo_gradnorm_reduce": True,
        "weight_softmax_temperature": 0.05,
        "skip_anomaly": True,
        "ewma_warmup_steps": 8,
        "clip_pseudo_grad": 10.0,
    },
}
ONE: Final = "one replica's learning rate × 30 for a round"
EVERY: Final = "all replicas' learning rate × 30 for a round"
NAN: Final = "one replica's weights are NaN"


def _robust(turn: int) -> ReplicaWorld:
    cases = []
    for group, (who, factor) in {ONE: (1, 30.0), EVERY: (-1, 30.0), NAN: (1, "nan")}.items():
        for way, config in _WAYS.items():
            if group != ONE and way not in (EQUAL, ALL):
                continue
            cases.append(
                WayPlan(
                    name=f"{group}|{way}",
                    kind="edit",
                    interval=8,
                    steps=32 + 8 * 20,
                    seed=turn,
                    config={"local_sgd_warmup_steps": 32, **config},
                    wild={"step": 32 + 8 * 19, "replica": who, "factor": factor},
                )
            )
    return ReplicaWorld(row=r.ROBUST, group="4 replicas", ranks=4, turn=turn, cases=tuple(cases))
