"""Worlds of replicas that synchronise units: real ranks, forked by one process that imports torch.

Run as a script; see `forked_worlds`. Replica i minimises what `scalar_edit` says, so the two can be
compared number by number.
"""

from __future__ import annotations

import ctypes
import fcntl
import functools
import gc
import os
import signal
import socket
import struct
import time
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from checkpoints.forked_worlds import ForkedWorlds, serve
from local_sgd import scalar_edit
from local_sgd.digests import digest

DEFAULTS: Mapping[str, Any] = {
    "kind": "gloo",
    "job": "rounds",
    "replicas": 2,
    "shards": 1,
    "sizes": [70, 0, 33],
    "rounds": 6,
    "steps": 3,
    "lr": 0.05,
    "clip": None,
    "temperature": None,
    "outer": None,
    "skip_anomaly": True,
    "alpha": 0.3,
    "threshold": 3.0,
    "warmup": 3,
    "codec": "none",
    "feedback": False,
    "merging": {},
    "dtype": "float32",
}


class ReplicaWorlds(ForkedWorlds):
    """The script as seen by a test."""

    script = __file__

    def __init__(self, **environment: str) -> None:
        """Start it; OWN_NETWORK=1: on a loopback of its own."""
        super().__init__(PYTHONWARNINGS="ignore", GLOO_SOCKET_IFNAME="lo", **environment)

    def train(self, **world: Any) -> list[dict[str, Any]]:
        """Run a world of `DEFAULTS` with these changes; return each rank's answer."""
        settings = {**DEFAULTS, **world}
        ranks = settings["replicas"] * settings["shards"]
        return self.run(world=ranks, **settings)


class Replica:
    """One rank's units, its groups and its sync."""

    def __init__(self, world: Mapping[str, Any]) -> None:
        """Make them; rank r holds shard r % M of replica r // M."""
        import torch
        import torch.distributed as dist

        from holdfast.local_sgd.sync.group import Group
        from holdfast.local_sgd.sync.units import Unit

        self.world = world
        replicas, shards = world["replicas"], world["shards"]
        self.replica, self.shard = divmod(dist.get_rank(), shards)
        rows = [[n * shards + m for m in range(shards)] for n in range(replicas)]
        columns = [[n * shards + m for n in range(replicas)] for m in range(shards)]
        row: Any = dist.new_subgroups_by_enumeration(rows)[0]
        column: Any = dist.new_subgroups_by_enumeration(columns)[0]
        timeout = world.get("timeout", 60.0)
        self.sync_group = Group(column, timeout=timeout)
        self.shard_group = Group(row, timeout=timeout)
        self.dtype = getattr(torch, world["dtype"])
        self.tensors = [self._part(one) for one in scalar_edit.start(world["sizes"])]
        drawn = scalar_edit.targets(self.replica, world["sizes"])
        self.targets = [self._part(one) for one in drawn]
        self.units = [
            Unit(f"unit {number}", functools.partial(tuple, (tensor,)), _outer(world))
            for number, tensor in enumerate(self.tensors)
        ]
        self.sync = _sync(world, self.sync_group, self.shard_group)
        for unit in self.units:
            unit.take_anchors()

    def _part(self, values: Sequence[float]) -> Any:
        """Return this shard's part, which may be empty."""
        import torch

        size = -(-len(values) // self.world["shards"])
        mine = values[self.shard * size : (self.shard + 1) * size]
        return torch.tensor(mine, dtype=self.dtype)

    def train(self, number: int) -> None:
        """Make a round's inner steps, and the fault that is planted in it."""
        rate, fault = self.world["lr"], self.world.get("fault", {})
        for _ in range(self.world["steps"]):
            for tensor, target in zip(self.tensors, self.targets, strict=True):
                tensor.sub_(rate * (tensor - target))
        where = (fault.get("replica"), fault.get("round"), 0)
        if where == (self.replica, number, self.shard):
            struck = self.tensors[fault["unit"]]
            struck[0] = struck[0] + 50.0 if fault["kind"] == "spike" else float(fault["kind"])

    def agree(self) -> list[Any]:
        """Make a round of all units; return its outcomes."""
        outcomes: list[Any] = self.sync.finish(self.sync.begin(self.units))
        return outcomes

    def digest(self) -> str:
        """Return a hash of all that lasts."""
        return digest(self.tensors, [unit.state_dict() for unit in self.units])


def _outer(world: Mapping[str, Any]) -> Any:
    import torch

    from holdfast.local_sgd.config import LocalSGDConfig, OuterOptimizerConfig
    from holdfast.local_sgd.sync.configured import outer_of

    given = world["outer"]
    config = LocalSGDConfig(cpu_offload=world.get("offload", False))
    if given is None:
        return outer_of(config, None)
    made = OuterOptimizerConfig(outer_optim_class=torch.optim.SGD, outer_optim_kwargs=given)
    return outer_of(config, made)


def _detector(world: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of a detector without what ours adds to the paper's."""
    return {
        "ewma_alpha": world["alpha"],
        "ewma_threshold": world["threshold"],
        "ewma_warmup_steps": world["warmup"],
        "ewma_bias_correction": False,
        "ewma_floor": 0.0,
    }


def _sync(world: Mapping[str, Any], sync: Any, shard: Any) -> Any:
    """Return the sync of a world's settings, which no user's configuration restricts."""
    from holdfast.local_sgd.config import LocalSGDConfig
    from holdfast.local_sgd.sync.merging import Merging
    from holdfast.local_sgd.sync.reducers import Reducer
    from holdfast.local_sgd.sync.unit_sync import UnitSync

    config = LocalSGDConfig(
        pseudo_gradnorm_reduce=world["temperature"] is not None,
        weight_softmax_temperature=world["temperature"],
        skip_anomaly=world["skip_anomaly"],
        clip_pseudo_grad=world["clip"],
        **(_detector(world) if world["skip_anomaly"] else {}),
    )
    merging = Merging(**world["merging"])
    reducer = Reducer(merging, codec=world["codec"], error_feedback=world["feedback"])
    clip_scope = world.get("clip_scope", "unit")
    return UnitSync(config, reducer, sync, shard, clip_scope=clip_scope)


def _rounds(world: Mapping[str, Any], pipe: Any) -> None:
    """Make all rounds; tell the first weights of each unit, the decisions and the bytes.

    What a rank tells must fit into a pipe, which is read when the ranks before it have ended.
    """
    replica = Replica(world)
    decisions, before = [], replica.sync_group.sent
    for number in range(world["rounds"]):
        replica.train(number)
        outcomes = _ahead(replica) if world.get("ahead") else replica.agree()
        decisions.append([(one.weights, one.rollback, one.clipped) for one in outcomes])
    pipe.send(
        {
            "weights": [one[:1000].tolist() for one in replica.tensors],
            "decisions": decisions,
            "sent": replica.sync_group.sent - before,
            "digest": digest(replica.tensors, [one.anchors.state_dict() for one in replica.units]),
            "rounds": [unit.round for unit in replica.units],
        }
    )


def _all_struck(world: Mapping[str, Any], pipe: Any) -> None:
    """Make two rounds; in the second the first shard of each replica has NaN in unit 0."""
    replica = Replica(world)
    replica.train(0)
    decisions = [replica.agree()]
    before = {"after_round_1": [one.tolist() for one in replica.tensors]}
    before["momentum_before"] = _momenta(replica)
    replica.train(1)
    if replica.shard == 0:
        replica.tensors[0][0] = float("nan")
    decisions.append(replica.agree())
    pipe.send(
        {
            **before,
            "weights": [one.tolist() for one in replica.tensors],
            "momentum": _momenta(replica),
            "rounds": [unit.round for unit in replica.units],
            "decisions": [[(one.weights, one.rollback) for one in some] for some in decisions],
        }
    )


def _momenta(replica: Replica) -> list[Any]:
    """Return the outer momentum of each unit."""
    states = [unit.anchors.state_dict()["optimizer"]["state"] for unit in replica.units]
    return [[one["momentum_buffer"].tolist() for one in some.values()] for some in states]


def _refused(world: Mapping[str, Any], pipe: Any) -> None:
    """Begin with units at other rounds, then be late; tell what each was told, and how soon."""
    from holdfast.local_sgd.sync.group import SyncError

    replica = Replica(world)
    replica.agree()
    before, said, took = replica.digest(), [], []
    for fault in ("ahead", "late", "again"):
        if fault == "ahead":
            replica.units[0].round += replica.replica
        elif fault == "late":
            replica.sync_group.timeout = 1.0
            time.sleep(4.0 * replica.replica)
        begun = time.monotonic()
        try:
            replica.agree()
            said.append("")
        except SyncError as error:
            said.append(f"{type(error).__name__}: {error}")
        took.append(time.monotonic() - begun)
        replica.units[0].round = 1
    pipe.send({"said": said, "took": took, "same": replica.digest() == before})


def _ahead(replica: Replica) -> list[Any]:
    """Sync unit by unit, each begun before the one ahead of it is finished."""
    outcomes: list[Any] = []
    pending = replica.sync.begin(replica.units[:1])
    for number in range(1, len(replica.units)):
        following = replica.sync.begin(replica.units[number : number + 1])
        outcomes += replica.sync.finish(pending)
        pending = following
    outcomes += replica.sync.finish(pending)
    return outcomes


def _wire(world: Mapping[str, Any], pipe: Any) -> None:
    """Make rounds and tell what the loopback of a network of their own has carried."""
    import torch.distributed as dist

    replica = Replica(world)
    replica.train(0)
    replica.agree()  # connections are there now
    dist.barrier()
    before, counted = _carried(), replica.sync_group.sent
    dist.barrier()
    for number in range(world["rounds"]):
        replica.train(number)
        replica.agree()
    dist.barrier()
    sent = replica.sync_group.sent - counted
    pipe.send({"carried": _carried() - before, "sent": sent})


def _carried() -> int:
    return int(
        next(
            line.split()[9]
            for line in Path("/proc/self/net/dev").read_text(encoding="ascii").splitlines()
            if line.strip().startswith("lo:")
        )
    )


def own_network() -> None:
    """Move to a network namespace with a loopback only; raises OSError where that is forbidden.

    Its TCP sends no loss probes (RFC 8985): when an acknowledgment is late on a busy machine, a
    probe sends up to 64 KiB a second time, 3 % of what a test of the bytes counts.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(0x40000000):  # CLONE_NEWNET
        raise OSError(ctypes.get_errno(), "unshare(CLONE_NEWNET)")
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
        request = struct.pack("16sH14x", b"lo", 1)  # IFF_UP
        fcntl.ioctl(control, 0x8914, request)  # SIOCSIFFLAGS
    Path("/proc/sys/net/ipv4/tcp_early_retrans").write_text("0", encoding="ascii")


def _killed(world: Mapping[str, Any], pipe: Any) -> None:
    """Lose a rank in a reduction; tell what became of the others' units, then go on without it."""
    import torch.distributed as dist

    from holdfast.local_sgd.sync.group import Group, SyncError

    replica = Replica(world)
    replica.train(0)
    replica.agree()
    replica.train(1)
    before = replica.digest()
    if dist.get_rank() == world["dies"]:
        _die_in_the_reduction(replica, world["after"])
    begun = time.monotonic()
    try:
        replica.agree()
        pipe.send({"failed": ""})
    except SyncError as error:
        pipe.send({"took": time.monotonic() - begun})
        cause = type(error.__cause__).__name__
        pipe.send({"failed": str(error), "cause": cause, "same": replica.digest() == before})
    gc.collect()
    replica.sync.sync.close()
    left = [rank for rank in range(dist.get_world_size()) if rank != world["dies"]]
    fresh: Any = dist.new_group(left, use_local_synchronization=True)
    _go_on(replica, Group(fresh), pipe)


def _go_on(replica: Replica, group: Any, pipe: Any) -> None:
    """Make the round in a new group; tell if detectors stayed, and how the units are then."""
    from holdfast.local_sgd.sync.group import SyncError

    own = [unit.detectors.get(replica.sync.sync.rank) for unit in replica.units]
    replica.sync.regroup(replica.units, group, replica.shard_group)
    kept = [unit.detectors.get(replica.sync.sync.rank) for unit in replica.units]
    pipe.send({"kept": kept == own and None not in own})
    try:
        replica.agree()
    except SyncError as error:
        pipe.send({"mixed": f"{type(error).__name__}: {error}"})
    pipe.send({"again": [unit.round for unit in replica.units], "after": digest(replica.tensors)})


def _closed(world: Mapping[str, Any], pipe: Any) -> None:
    """Have one replica close its group while the others reduce; tell how soon they fail."""
    from holdfast.local_sgd.sync.group import SyncError

    replica = Replica(world)
    replica.agree()
    begun = time.monotonic()
    if replica.replica == 1:
        time.sleep(0.3)
        replica.sync_group.close()
        time.sleep(40)
    try:
        replica.agree()
    except SyncError as error:
        pipe.send({"took": time.monotonic() - begun, "said": str(error)})


def _die_in_the_reduction(replica: Replica, after: float) -> None:
    """Start the large reduction and be killed so many seconds later; under 0: do not start it."""
    reducer = replica.sync.reducer
    start = reducer.start

    def killed(*given: Any) -> Any:
        if after >= 0:
            pending = start(*given)
            time.sleep(after)
            assert pending
        os.kill(os.getpid(), signal.SIGKILL)

    setattr(reducer, "start", killed)  # noqa: B010 - a method, for mypy
    replica.agree()


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    if os.environ.get("OWN_NETWORK"):
        own_network()
    import holdfast.local_sgd.sync.configured  # noqa: F401 - forked ranks find it imported
    from local_sgd import ddp_replicas, new_parts, reductions

    serve(
        {
            "rounds": _rounds,
            "wire": _wire,
            "all struck": _all_struck,
            "killed": _killed,
            "closed": _closed,
            "refused": _refused,
            "reduce": reductions.reduce,
            "new parts": new_parts.train,
            **ddp_replicas.JOBS,
        }
    )
