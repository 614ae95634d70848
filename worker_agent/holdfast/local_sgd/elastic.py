"""Rounds of members that come and go: the part that the hooks of all frameworks share.

Belongs here: when a rank asks for its members, and what it does until a change is carried out. Does
not belong here: how a change is carried out (`sync.regroup`), and a framework's own counters.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, Protocol

from holdfast.flash.trainer.leaves import StateError
from holdfast.flash.trainer.values import decode_value, encode_value
from holdfast.local_sgd.config import LocalSGDConfig
from holdfast.local_sgd.errors import LocalSGDError
from holdfast.local_sgd.members import Members, MembersError, Membership
from holdfast.local_sgd.sync.group import Group, SyncError
from holdfast.local_sgd.sync.parcels import InnerState
from holdfast.local_sgd.sync.regroup import Regroup, Regrouped, Situation
from holdfast.local_sgd.sync.unit_sync import RoundsDifferError, UnitSync, all_or_none
from holdfast.local_sgd.sync.units import AnchorsDifferError

if TYPE_CHECKING:
    import torch.distributed as dist

    from holdfast.local_sgd.sync.units import Unit

log: Final = logging.getLogger("holdfast")


class Carried(Protocol):
    """What a script gives a joiner beside the model, such as a scheduler and its place in the data.

    torch's `Stateful`, with a state of plain data: numbers, text, tensors, and lists, tuples, sets
    and dicts of them.
    """

    def state_dict(self) -> dict[str, Any]:
        """Return the state, at the start of a round."""

    def load_state_dict(self, state_dict: dict[str, Any], /) -> None:
        """Take the state of a replica that trains, before the first step."""


class Hooks(Protocol):
    """A framework's side."""

    config: LocalSGDConfig

    @property
    def inner(self) -> InnerState:
        """What is this replica's own beside the units: joiners get it too."""

    @property
    def units(self) -> list[Unit]:
        """In one order on all replicas."""

    def situation(self, *, is_new: bool) -> Situation:
        """Return where this replica stands."""

    def before_write(self, number: int) -> None:
        """Prepare a unit's weights for a write."""

    def share_weights(self, source: int) -> None:
        """Give all replicas the weights of the one with this rank; raises SyncError."""


class Elastic:
    """The members of this process, and their changes."""

    def __init__(
        self,
        members: Members,
        sync: UnitSync,
        hooks: Hooks,
        groups: Callable[[], Iterable[Mapping[str, Any]]],
    ) -> None:
        """Take the parts; `start` meets the others.

        Args:
            members: Of this process.
            sync: Gets each new group.
            hooks: The framework's.
            groups: Returns the groups of the inner optimizers, whose numbers a joiner gets.
        """
        self.members, self._sync, self._hooks = members, sync, hooks
        self._groups = groups
        self._carried: dict[str, Carried] = {}
        self._given: dict[str, bytes] = {}
        self._numbers: list[dict[str, Any]] = []
        self.own = members.shard_group
        """All ranks of this replica."""
        self._is_new = True
        self.group = Group.of_one()
        """The replicas that are there."""
        self.membership: Membership | None = None

    @property
    def epoch(self) -> tuple[int, dist.Store | None]:
        """Number of this epoch, and where its replicas meet; None: fixed ones have no store."""
        now = self.membership
        return (0, None) if now is None else (now.epoch, now.store)

    def carry(self, name: str, one: Carried) -> bool:
        """Give later joiners the state of this; a joiner takes what it was given, and returns True.

        Raises:
            LocalSGDError: the state is no plain data.
        """
        self._carried[name] = one
        self._position()  # what cannot be sent is told now, not at the first joiner
        takes = name in self._given
        if takes:
            self._load_carried()
        return takes

    def refresh(self) -> Regrouped | None:
        """Carry out a change, at the start of a round; None: there is none.

        Raises:
            MembersError: no membership came that this rank can follow.
            SyncError: a rank of this replica is gone.
        """
        membership = self.members.refresh()
        return None if membership is None else self._carried_out(membership)

    def recover(self, failed: str) -> Regrouped:
        """Carry out the change that has made a collective fail.

        Args:
            failed: Its error as text: the error itself keeps the group alive that is to be ended.

        Raises:
            MembersError, SyncError: as `refresh`.
        """
        log.warning("local SGD: waiting for the next members, since a sync has failed: %s", failed)
        try:
            membership = self.members.recover()
        except MembersError as error:
            raise MembersError(f"{error} (after: {failed})") from error
        return self._carried_out(membership)

    def _carried_out(self, membership: Membership) -> Regrouped:
        """Regroup, in as many groups as it takes; each has the deadline of `members`."""
        while True:
            if (found := self._try(membership)) is not None:
                return found
            membership = self.members.recover()

    def _try(self, membership: Membership) -> Regrouped | None:
        """Carry out one change; None: another came in between."""
        self.membership, self.group = membership, membership.group
        hooks = self._hooks
        self._sync.regroup(hooks.units, membership.group, self._sync.shard)
        regroup = Regroup(
            hooks.units,
            membership.replicas,
            (membership.group, self.own),
            hooks.config,
            before_write=hooks.before_write,
            inner=hooks.inner,
            in_step=not hooks.config.use_async,
        )
        try:
            found = regroup.carry_out(hooks.situation(is_new=self._is_new), self._position)
            if found.plan is None:
                all_or_none(self.own, lambda: hooks.share_weights(found.source))
        except SyncError as error:
            log.warning("local SGD: members changed again: %s", error)
            return None
        if found.joined:
            self.take_position(found)
        self._is_new = False
        log.info(
            "local SGD: epoch %d, replicas %s: %s",
            membership.epoch,
            list(membership.replicas),
            "no anchors yet" if found.plan is None else found.plan.reason,
        )
        return found

    def _position(self) -> bytes:
        """Return what a joiner needs beside the units."""
        carried: dict[str, bytes] = {}
        for name, one in self._carried.items():
            what = f"carry({name!r}): the state_dict() of this {type(one).__name__}"
            try:
                carried[name] = encode_value(what, one.state_dict())
            except StateError as error:
                raise LocalSGDError(str(error)) from error
        groups = numbers_of(self._groups())
        return encode_value("position", {"groups": groups, "carried": carried})

    def take_position(self, found: Regrouped) -> None:
        """Take learning rates and what the script carries from a replica that is ahead."""
        given = decode_value("position", found.position)
        self._numbers, self._given = given["groups"], given["carried"]
        self._load_carried()

    def keep_numbers(self) -> None:
        """Have the numbers that the groups have now stand, whatever the script makes next."""
        self._numbers = numbers_of(self._groups())

    def _load_carried(self) -> None:
        """Load what was given, as far as the script has named its holders by now.

        A scheduler that is made meanwhile changes the groups' numbers: what was given stands.
        """
        for name in self._given.keys() & self._carried.keys():
            self._carried[name].load_state_dict(decode_value(name, self._given.pop(name)))
        for group, numbers in zip(self._groups(), self._numbers, strict=True):
            _take_numbers(group, numbers)


def attempt(call: Callable[[], object]) -> str | None:
    """Make a call; return the text of the error of a collective that a lost rank may have failed.

    Raises:
        RoundsDifferError, AnchorsDifferError: no change of members mends them.
    """
    try:
        call()
    except (RoundsDifferError, AnchorsDifferError):
        raise
    except SyncError as error:
        return str(error)
    return None


def numbers_of(groups: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return the numbers of an optimizer's groups: learning rates, and where a scheduler began."""
    return [{key: one for key, one in group.items() if _is_number(one)} for group in groups]


def _is_number(one: Any) -> bool:
    import torch

    if torch.is_tensor(one):
        return one.ndim == 0
    return all(type(each) in (int, float, bool) for each in (one if type(one) is tuple else (one,)))


def _take_numbers(group: Any, numbers: Mapping[str, Any]) -> None:
    """Put numbers in the place of a group's own, in those tensors that are shared with others."""
    import torch

    for key in numbers.keys() & group.keys():
        if torch.is_tensor(group[key]):
            group[key].fill_(numbers[key])
        else:
            group[key] = numbers[key]


def inner_groups(optimizers: Sequence[Any]) -> list[Mapping[str, Any]]:
    """Return the groups of all inner optimizers."""
    return [group for one in optimizers for group in one.param_groups]
