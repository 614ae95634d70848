"""Members of a sync group, and the group itself, before and after replicas come and go.

Belongs here: how a rank learns of a change, and how it comes into the new group. Does not belong
here: who is a member (the control plane), and what units do then (`policies.roster`).

A rank asks at each outer boundary (`refresh`), and when a collective has failed (`recover`). Ranks
need not see a change at the same boundary. The first that does closes the old group. Those that
already reduce in it fail then, with their units as they were, and come too.
"""

from __future__ import annotations

import dataclasses
import logging
import math
import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol

from holdfast.local_sgd.errors import LocalSGDError
from holdfast.local_sgd.policies.outer_roster import OuterRoster
from holdfast.local_sgd.sync.fresh_group import POLL, ChangingGroup, watched_store
from holdfast.local_sgd.sync.group import TIMEOUT, Group, SyncError

if TYPE_CHECKING:
    import torch.distributed as dist
    from torch.distributed.device_mesh import DeviceMesh

log: Final = logging.getLogger("holdfast")
ROSTER: Final = "HOLDFAST_OUTER_ROSTER"
"""Names the file that has the newest roster."""
REPLICA: Final = "HOLDFAST_REPLICA"
"""Number of this process's replica in rosters."""


SETTLED: Final = 100_000_000
"""Nanoseconds since a roster's file was written until its time and inode tell it from the next: a
file system's clock ticks each 4 ms, and the inode of one that is replaced is given again."""
COMPLAINT: Final = 2.0
"""Seconds without another roster after which a rank says that it could not meet the members of the
last one. A lost replica is reported sooner, where its end was seen."""


class MembersError(LocalSGDError, RuntimeError):
    """No roster that this rank can follow: none came in time, or none can come."""


@dataclasses.dataclass(frozen=True, slots=True)
class Membership:
    """Replicas of one epoch, and the sync group that this rank has with them."""

    epoch: int
    replicas: tuple[int, ...]
    """By their ranks in the group."""
    group: Group
    store: dist.Store | None = None
    """Where the replicas of this epoch, and no others, meet; None: that of the default group."""


class Members(Protocol):
    """The other replicas, as a sync knows them."""

    @property
    def changes(self) -> bool:
        """Replicas may come and go."""

    @property
    def shard_group(self) -> Group:
        """The ranks of this replica."""

    @property
    def timeout(self) -> float:
        """Seconds until a collective has failed."""

    def has_changed(self) -> bool:
        """Tell at once, without a collective, if there is a newer roster than that followed."""

    def refresh(self) -> Membership | None:
        """Return the new membership, at an outer boundary; None: it is the one that was."""

    def recover(self) -> Membership:
        """Return the next membership, after a collective has failed; raises MembersError."""


class StaticMembers:
    """Replicas that the launcher has fixed: the default group, cut into blocks of ranks."""

    changes = False

    def __init__(self, shards: int = 1, *, timeout: float = TIMEOUT) -> None:
        """Cut the default group; all its ranks call this.

        Args:
            shards: Ranks of a replica, M. Rank r holds shard r % M of replica r // M.
            timeout: Seconds until a collective has failed.

        Raises:
            ValueError: the ranks are no whole number of replicas.
        """
        import torch.distributed as dist

        world = dist.get_world_size()
        if shards < 1 or world % shards:
            raise ValueError(f"shards={shards}: {world} ranks are no whole number of replicas")
        rows = [list(range(first, first + shards)) for first in range(0, world, shards)]
        columns = [list(range(shard, world, shards)) for shard in range(shards)]
        self.shard_group = Group(_own(rows), timeout=timeout)
        self.timeout = timeout
        replicas = tuple(range(world // shards))
        self._first: Membership | None = Membership(
            1, replicas, Group(_own(columns), timeout=timeout)
        )

    def has_changed(self) -> bool:
        """Return False."""
        return False

    def refresh(self) -> Membership | None:
        """Return the only membership there is, the first time."""
        first, self._first = self._first, None
        return first

    def recover(self) -> Membership:
        """Raise: these ranks have no roster that says which replicas are left."""
        raise MembersError(
            "a replica is gone, and the replicas of this job are fixed: restart the job from its "
            "newest checkpoint, or give each rank a RosterMembers"
        )


@dataclasses.dataclass(frozen=True, slots=True)
class Signals:
    """How a rank speaks to its control plane."""

    ready: Callable[[], None]
    """Called once, when this rank is ready to meet others. A roster that names a replica before
    makes the others wait until it is."""
    unmet: Callable[[int], None] = lambda _: None
    """Called with an epoch whose members this rank cannot meet, or not any more, though it knows no
    newer roster: a group is made anew only in another epoch."""


class RosterMembers:
    """Replicas that rosters name; the default group is this replica's own."""

    changes = True

    def __init__(
        self,
        read: Callable[[], OuterRoster | None],
        replica: int,
        shard_group: Group,
        *,
        backend: str = "gloo",
        timeout: float = TIMEOUT,
        patience: float = TIMEOUT,
        signals: Signals | None = None,
    ) -> None:
        """Take the place of this rank; nothing is made before `refresh` or `recover`.

        Args:
            read: The newest roster, such as `roster_file` returns it; None: there is none yet.
            replica: Number of this replica in rosters.
            shard_group: Ranks of this replica; the rank in it is the shard.
            backend: Of sync groups.
            timeout: Seconds until a collective of a sync group has failed.
            patience: Seconds to wait for a roster that this rank can follow.
            signals: Tell the control plane where this rank stands.
        """
        self._read, self._replica, self.shard_group = read, replica, shard_group
        self.timeout, self._patience = timeout, patience
        self._signals, self._is_ready = signals, False
        self._outer = ChangingGroup(backend)
        self._tried = 0
        self._now: Membership | None = None

    @property
    def epoch(self) -> int:
        """Of the newest roster that this rank has followed, or tried to; 0: of none."""
        return self._tried

    def has_changed(self) -> bool:
        """Return True if this rank sees a newer roster than the one it has followed."""
        return self._epoch() > self._tried

    def refresh(self) -> Membership | None:
        """Return the membership of a newer roster, once all members are there; None: none is.

        Ranks of one replica follow the same roster: they agree on the newest that one has seen.

        Raises:
            MembersError: no roster came in time whose members all came.
            SyncError: a rank of this replica is gone.
        """
        if self._signals and not self._is_ready:
            self._is_ready = True
            self._signals.ready()
        seen = self._agreed(self._epoch())
        if self._now is not None and seen <= self._tried:
            return None
        return self._follow(seen)

    def recover(self) -> Membership:
        """Close the group that has failed, and return the membership of the next roster.

        Raises:
            MembersError, SyncError: as `refresh`.
        """
        self._close()
        return self._follow(self._tried + 1)

    def _follow(self, at_least: int) -> Membership:
        """Try rosters from an epoch on, until all ranks of this replica are in a group."""
        self._close()
        deadline = time.monotonic() + self._patience
        while True:
            roster = self._wait(at_least, deadline)
            newest = self._agreed(roster.epoch)
            if newest > -self._agreed(-roster.epoch):
                at_least = newest  # all ranks look again: none may go on alone
                self._check(deadline, roster, at_least)
                continue
            met = self._meet(roster, deadline)
            failed = self._agreed(0 if met else 1)
            self._tried = roster.epoch
            if met and not failed:
                self._now = Membership(roster.epoch, roster.replicas, *met)
                return self._now
            self._close()
            at_least = roster.epoch + 1

    def _wait(self, at_least: int, deadline: float) -> OuterRoster:
        """Return the first roster of such an epoch that has this replica."""
        complaint = time.monotonic() + COMPLAINT
        while True:
            roster = self._read()
            if roster and roster.epoch >= at_least and self._replica in roster.replicas:
                return roster
            if self._signals and at_least > 1 and time.monotonic() > complaint:
                complaint = math.inf
                self._signals.unmet(at_least - 1)
            self._check(deadline, roster, at_least)
            time.sleep(POLL)

    def _check(self, deadline: float, roster: OuterRoster | None, at_least: int) -> None:
        """Raise MembersError after the deadline."""
        if time.monotonic() > deadline:
            raise MembersError(
                f"replica {self._replica} found no roster from epoch {at_least} on that has "
                f"it, in {self._patience:g} s; the newest is {roster}. Look why the control "
                "plane made none, and restart this replica"
            )

    def _meet(self, roster: OuterRoster, deadline: float) -> tuple[Group, dist.Store] | None:
        """Return group and store of a roster; None: not all came, or a newer roster is there."""
        import torch.distributed as dist

        if len(roster.replicas) == 1:
            return Group.of_one(), dist.HashStore()  # which needs no network
        rank, size = roster.replicas.index(self._replica), len(roster.replicas)
        name = f"holdfast_outer_{roster.epoch}_{self.shard_group.rank}"
        try:
            store = self._store(roster)
            store.set(f"{name}/{rank}", "here")
            keys = [f"{name}/{other}" for other in range(size)]
            while not store.check(keys):
                if self._epoch() > roster.epoch or time.monotonic() > deadline:
                    return None
                time.sleep(POLL)
            watched = watched_store(store, lambda: self._has_lost(roster))
            made = self._outer.form(watched, name=name, rank=rank, size=size, timeout=self.timeout)
        except (SyncError, dist.DistError) as error:
            # The store or a member is gone: the next roster has those that are left.
            log.warning("local SGD: no group for epoch %d: %s", roster.epoch, error)
            return None
        group = Group(made, timeout=self.timeout)
        group.interrupted = lambda: self._has_lost(roster)
        return group, store

    def _has_lost(self, roster: OuterRoster) -> bool:
        """Return True if a member is out by a newer roster; a joiner alone interrupts nothing."""
        return roster.has_lost(self._read())

    def _store(self, roster: OuterRoster) -> dist.Store:
        from datetime import timedelta

        import torch.distributed as dist

        host, port = roster.address
        limit = timedelta(seconds=5)  # a store is up before its roster: this long is a dead one
        return dist.TCPStore(host, port, is_master=False, wait_for_workers=False, timeout=limit)

    def _agreed(self, value: int) -> int:
        """Return the greatest of this replica's ranks."""
        return int(self.shard_group.max_scalars([value])[0])

    def _epoch(self) -> int:
        roster = self._read()
        return roster.epoch if roster else 0

    def _close(self) -> None:
        """Leave the members that there are, also those of a group that was not agreed on."""
        last, self._now = self._now, None
        if last is not None:
            last.group.give_up()
        self._outer.leave()


def members_of_environment(
    shards: int | None = None,
    *,
    backend: str | None = None,
    timeout: float = TIMEOUT,
    patience: float = TIMEOUT,
    environment: Mapping[str, str] = os.environ,
) -> StaticMembers | RosterMembers:
    """Return the members of this process: those of rosters under an agent, else fixed ones.

    Call it behind `init_process_group`, on all ranks. An agent names the roster's file in
    HOLDFAST_OUTER_ROSTER and this replica's number in HOLDFAST_REPLICA. A rank that is ready to
    meet others makes an empty file beside it, `<roster>.ready-<replica>-<rank>`: a roster that has
    a replica before its ranks are ready makes the others wait for them. One that could not meet the
    others writes the epoch to `<roster>.unmet-<replica>-<rank>`.

    Args:
        shards: Ranks of a replica; None: under an agent all ranks of its world, else 1.
        backend: Of sync groups under an agent; None: that of the default group.
        timeout: Seconds until a collective has failed.
        patience: Seconds to wait for a roster that this rank can follow.
        environment: Where the names stand.

    Raises:
        MembersError: only one of the two is set, or HOLDFAST_REPLICA is no number.
        ValueError: the ranks are no whole number of replicas, or under an agent not just one.
    """
    import torch.distributed as dist

    path, replica = environment.get(ROSTER, ""), environment.get(REPLICA, "")
    if not path and not replica:
        return StaticMembers(1 if shards is None else shards, timeout=timeout)
    if not path or not replica.isdecimal():
        raise MembersError(
            f"{ROSTER}={path!r}, {REPLICA}={replica!r}: expected the path of the roster's file "
            "and the number of this replica; set both, as the agent does, or neither"
        )
    world = dist.get_world_size()
    if shards not in (None, world):
        raise ValueError(
            f"shards={shards}: this replica's world has {world} ranks, all of which hold one "
            "replica; leave shards out"
        )
    read = roster_file(Path(path))
    return RosterMembers(
        read,
        int(replica),
        Group(timeout=timeout),
        backend=dist.get_backend() if backend is None else backend,
        timeout=timeout,
        patience=patience,
        signals=Signals(
            Path(f"{path}.ready-{replica}-{dist.get_rank()}").touch,
            _complaints(Path(f"{path}.unmet-{replica}-{dist.get_rank()}")),
        ),
    )


def _complaints(path: Path) -> Callable[[int], None]:
    """Return a writer of the newest epoch that this rank could not meet in."""

    def write(epoch: int) -> None:
        log.warning("local SGD: asks for another epoch than %d: its members did not meet", epoch)
        fresh = path.with_name(f"{path.name}.new")
        fresh.write_text(str(epoch), encoding="utf-8")
        fresh.replace(path)

    return write


def members_if_named(environment: Mapping[str, str] = os.environ) -> Members | None:
    """Return the members that an agent names in the environment; None: it names none."""
    named = are_named(environment)
    return members_of_environment(environment=environment) if named else None


def are_named(environment: Mapping[str, str] = os.environ) -> bool:
    """Return True if an agent names members in the environment: this world is one replica then."""
    return bool(environment.get(ROSTER) or environment.get(REPLICA))


def mesh_of(members: Members, device_type: str) -> DeviceMesh:
    """Return the mesh of this replica's ranks, for `fully_shard` and `LocalSGD`.

    Args:
        members: Of this process.
        device_type: "cuda" or "cpu".
    """
    from torch.distributed.device_mesh import DeviceMesh

    return DeviceMesh.from_group(members.shard_group.ranks, device_type, mesh_dim_names=("shard",))


def roster_file(path: Path) -> Callable[[], OuterRoster | None]:
    """Return a reader of a roster's file, which its writer replaces whole (`os.replace`).

    A rank that waits for a collective reads it each millisecond: it is parsed when it is another
    file than before.
    """
    last: tuple[tuple[int, int, int], OuterRoster] | None = None

    def read() -> OuterRoster | None:
        nonlocal last
        try:
            found = os.stat(path)  # noqa: PTH116 - half the time of Path.stat
            sign = found.st_ino, found.st_mtime_ns, found.st_size
            if last is not None and last[0] == sign:
                return last[1]
            read_now = OuterRoster.from_text(path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            return None
        if time.time_ns() - found.st_mtime_ns > SETTLED:
            last = sign, read_now
        return read_now

    return read


def _own(blocks: list[list[int]]) -> dist.ProcessGroup:
    """Return this rank's group of those that all ranks make."""
    import torch.distributed as dist

    made: Any = dist.new_subgroups_by_enumeration(blocks)[0]
    own: dist.ProcessGroup = made  # each rank is in a block
    return own
