"""Replicas of a driver that come and go, by the members that a script or an agent names.

Belongs here: when a rank asks for its members, what it does until a change is carried out, and what
joiners get beside the units. Does not belong here: how a rank learns of a change (`members`), how
one is carried out (`sync.regroup`), and the counters that follow it (`driver`).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final, TypeGuard, TypeVar

from holdfast.flash.trainer.leaves import StateError, Stateful
from holdfast.flash.trainer.values import decode_value, encode_value
from holdfast.local_sgd.driver.replicas import FixedMembers
from holdfast.local_sgd.errors import LocalSGDError, WarmUpError
from holdfast.local_sgd.members.carried import Carried
from holdfast.local_sgd.members.members import Members, MembersError, Membership
from holdfast.local_sgd.sync.group import Group, SyncError
from holdfast.local_sgd.sync.regroup import Regroup, Regrouped
from holdfast.local_sgd.sync.unit_sync import RoundsDifferError, all_or_none
from holdfast.local_sgd.sync.units import AnchorsDifferError

if TYPE_CHECKING:
    import torch
    from torch.optim.lr_scheduler import LRScheduler

    from holdfast.local_sgd.driver.driver import Driver

T = TypeVar("T")
log: Final = logging.getLogger("holdfast")


class ChangingMembers(FixedMembers):
    """Replicas that `Members` name: those of rosters, or fixed ones that are cut from a world."""

    meets = True

    def __init__(self, members: Members) -> None:
        """Take them; `start` meets the others."""
        super().__init__(Group.of_one(), members.shard_group)
        self._members, self.changes = members, members.changes
        self.voters = self.own if members.changes else None
        self._carried = Carried()
        self._numbers: list[dict[str, Any]] = []
        self._is_new = True

    def attach(self, driver: Driver) -> None:
        """Take the driver whose state a change of members goes by; `refresh` meets the others."""
        self._driver = driver

    def has_changed(self) -> bool:
        """Tell at once, without a collective, if there is a newer roster."""
        return self._members.has_changed()

    def carry(self, name: str, one: Stateful) -> bool:
        """Give later joiners the state of this; a joiner takes what it was given, and returns True.

        Where rounds run at the end of a step the others give within `optimizer.step()`, before
        their scripts step a scheduler: a joiner, which begins behind that, steps it.

        Raises:
            LocalSGDError: the state is no plain data.
        """
        try:
            was_given = self._carried.add(name, one)
        except StateError as error:
            raise LocalSGDError(str(error)) from error
        if not was_given:
            return False
        self._load_carried()
        driver = self._driver
        if not driver.adapter.in_forward and catch_up(driver.steps - 1, one):
            self._numbers = numbers_of(driver.adapter.inner_groups())
        return True

    def refresh(self) -> None:
        """Carry out a change, if there is one, at the start of a round; the driver follows it.

        Raises:
            MembersError: no membership came that this rank can follow.
            SyncError: a rank of this replica is gone.
        """
        membership = self._members.refresh()
        if membership is not None:
            self._carry_out(membership)

    def attempt(self, call: Callable[[], T]) -> T | None:
        """Make a call; None: its collective has failed, and a change of members is carried out.

        Raises:
            RoundsDifferError, AnchorsDifferError: no change of members mends them.
            MembersError, SyncError: as `refresh`.
        """
        try:
            return call()
        except (RoundsDifferError, AnchorsDifferError):
            raise
        except SyncError as error:
            failed = str(error)  # the error itself keeps the group alive that is to be ended
        self._recover(failed)
        return None

    def average(self, gradient: torch.Tensor) -> None:
        """Average a gradient of the warm-up over the replicas; raises WarmUpError."""
        driver = self._driver
        try:
            self.group.begin_sum(gradient).wait()
        except SyncError as error:
            raise WarmUpError(
                f"local_sgd_warmup_steps={driver.config.local_sgd_warmup_steps}: a replica was "
                f"lost after {driver.steps} steps, while gradients were averaged over all "
                "replicas; start this replica again from the newest checkpoint, as the others do, "
                "or set local_sgd_warmup_steps=0"
            ) from error
        gradient.div_(self.group.size)

    def take_position(self, found: Regrouped) -> None:
        """Take learning rates and what the script carries from a replica that is ahead."""
        given = decode_value("position", found.position)
        self._numbers = given["groups"]
        self._carried.take(given["carried"])
        self._load_carried()

    def _recover(self, failed: str) -> None:
        log.warning("local SGD: waiting for the next members, since a sync has failed: %s", failed)
        try:
            membership = self._members.recover()
        except MembersError as error:
            raise MembersError(f"{error} (after: {failed})") from error
        self._carry_out(membership)

    def _carry_out(self, membership: Membership) -> None:
        """Regroup, in as many groups as it takes; each has the deadline of the members."""
        while (found := self._try(membership)) is None:
            membership = self._members.recover()
        self._driver.apply(found)

    def _try(self, membership: Membership) -> Regrouped | None:
        """Carry out one change; None: another came in between."""
        self.group, self.store = membership.group, membership.store
        driver, adapter = self._driver, self._driver.adapter
        driver.unit_sync.regroup(adapter.units, self.group, driver.unit_sync.shard)
        regroup = Regroup(
            adapter.units,
            membership.replicas,
            (self.group, self.own),
            driver.config.late_discount,
            before_write=adapter.before_change,
            inner=adapter.inner,
            in_step=driver.when.in_step,
        )
        try:
            found = regroup.carry_out(
                driver.situation(is_new=self._is_new),
                lambda: self._position(adapter.inner_groups()),
            )
            if found.plan is None:
                all_or_none(self.own, lambda: adapter.share_weights(found.source))
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

    def _position(self, groups: Iterable[Mapping[str, Any]]) -> bytes:
        """Return the bytes that a joiner needs besides the units."""
        try:
            carried = self._carried.states()
        except StateError as error:
            raise LocalSGDError(str(error)) from error
        return encode_value("position", {"groups": numbers_of(groups), "carried": carried})

    def _load_carried(self) -> None:
        """Load what was given.

        A scheduler that is made meanwhile changes the groups' numbers: what was given stands.
        """
        self._carried.load()
        for group, numbers in zip(self._driver.adapter.inner_groups(), self._numbers, strict=True):
            take_numbers(group, numbers)


def catch_up(step: int, one: Any) -> bool:
    """Step a scheduler that a joiner was given as of the step before; tell if it was.

    One that knows by itself how far it is behind has a `catch_up`, as Megatron's is carried.
    """
    if hasattr(one, "catch_up"):
        return bool(one.catch_up())
    if counts_to(step, one):
        one.step()
        return True
    return False


def counts_to(step: int, one: Any) -> TypeGuard[LRScheduler]:
    """Return True if this scheduler of torch is stepped with the optimizer, at this step."""
    from torch.optim import lr_scheduler

    while isinstance(one, lr_scheduler.ChainedScheduler):  # has no count of its own
        one = one._schedulers[0]  # noqa: SLF001 - no public way
    waits = isinstance(one, lr_scheduler.ReduceLROnPlateau)  # for a loss
    return isinstance(one, lr_scheduler.LRScheduler) and not waits and one.last_epoch == step


def numbers_of(groups: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return the numbers of an optimizer's groups: learning rates, and where a scheduler began."""
    return [{key: one for key, one in group.items() if _is_number(one)} for group in groups]


def _is_number(one: Any) -> bool:
    import torch

    if torch.is_tensor(one):
        return one.ndim == 0
    return all(type(each) in (int, float, bool) for each in (one if type(one) is tuple else (one,)))


def take_numbers(group: Any, numbers: Mapping[str, Any]) -> None:
    """Put numbers in the place of a group's own, in those tensors that are shared with others."""
    import torch

    for key in numbers.keys() & group.keys():
        if torch.is_tensor(group[key]):
            group[key].fill_(numbers[key])
        else:
            group[key] = numbers[key]
