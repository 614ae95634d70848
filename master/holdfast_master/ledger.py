"""The goodput accounts of all nodes.

Belongs here: counting, moving seconds between classes afterwards, the cost of an incident. Does not
belong here: which class a node's time is of (`decide.goodput` and whoever changes a node's state).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping

from holdfast_master.decide.goodput import Totals, entries
from holdfast_master.faults import ensure
from holdfast_wire.messages import GoodputClass, GoodputEntry


@dataclasses.dataclass(slots=True)
class Account:
    """The seconds of one node."""

    kind: GoodputClass
    """The class that is running."""
    since: int
    """Microseconds on the master's clock."""
    totals: Totals
    opened: int
    """When this master began to count, microseconds."""
    brought: int
    """Sum of what was counted before, microseconds."""
    incident: str = ""
    """Incident that the running class is a cost of."""
    recent: int = 0
    """PRODUCTIVE microseconds in the current world: what a roll-back can take away."""


class Ledger:
    """The accounts of all nodes, by node rank."""

    def __init__(self) -> None:
        self._open: dict[int, Account] = {}
        self._closed: dict[int, Totals] = {}
        self._costs: dict[str, Totals] = {}

    def bring(self, totals: Mapping[int, Totals]) -> None:
        """Take over what an earlier master counted; the accounts stay closed."""
        self._closed = {rank: dict(classes) for rank, classes in totals.items()}

    def open(self, rank: int, kind: GoodputClass, at: int) -> None:
        """Begin to count a node; one that is counted already goes on."""
        if rank in self._open:
            return
        totals = self._closed.pop(rank, {})
        self._open[rank] = Account(kind, at, totals, at, sum(totals.values()))

    def close(self, rank: int, at: int) -> Totals:
        """Stop counting a node; its totals so far."""
        account = self._open.pop(rank, None)
        if account is None:
            return dict(self._closed.get(rank, {}))
        self._settle(account, at)
        self._closed[rank] = account.totals
        return dict(account.totals)

    def turn(self, rank: int, kind: GoodputClass, at: int, incident: str = "") -> None:
        """From `at` on the node's time is of another class, perhaps the cost of an incident."""
        account = self._open.get(rank)
        if account is None or (account.kind is kind and account.incident == incident):
            return
        self._settle(account, at)
        account.kind, account.incident = kind, incident

    def kind(self, rank: int) -> GoodputClass:
        """The running class; UNSPECIFIED: the node is not counted."""
        account = self._open.get(rank)
        return GoodputClass.UNSPECIFIED if account is None else account.kind

    def begin_world(self, ranks: Iterable[int], at: int) -> None:
        """A new world trains: what was productive before cannot be taken away any more."""
        for rank in ranks:
            account = self._open.get(rank)
            if account is not None:
                self._settle(account, at)
                account.recent = 0

    def reclassify(
        self, rank: int, amount: int, kind: GoodputClass, at: int, incident: str = ""
    ) -> int:
        """Move up to `amount` PRODUCTIVE microseconds of the newest world to `kind`."""
        account = self._open.get(rank)
        if account is None:
            return 0
        self._settle(account, at)
        moved = max(0, min(amount, account.recent))
        if moved:
            account.recent -= moved
            account.totals[GoodputClass.PRODUCTIVE] -= moved
            account.totals[kind] = account.totals.get(kind, 0) + moved
            self._cost(incident, kind, moved)
        return moved

    def _settle(self, account: Account, at: int) -> None:
        spent = max(0, at - account.since)
        account.since = max(at, account.since)
        account.totals[account.kind] = account.totals.get(account.kind, 0) + spent
        if account.kind is GoodputClass.PRODUCTIVE:
            account.recent += spent
        self._cost(account.incident, account.kind, spent)

    def _cost(self, incident: str, kind: GoodputClass, spent: int) -> None:
        if incident and spent:
            costs = self._costs.setdefault(incident, {})
            costs[kind] = costs.get(kind, 0) + spent

    def cost(self, incident: str, at: int) -> tuple[GoodputEntry, ...]:
        """Node-seconds that an incident has cost so far, by class."""
        for account in self._open.values():
            if account.incident == incident:
                self._settle(account, at)
        return entries(self._costs.get(incident, {}))

    def forget(self, incident: str) -> None:
        """An incident is closed for good; what runs on is not its cost."""
        self._costs.pop(incident, None)
        for account in self._open.values():
            if account.incident == incident:
                account.incident = ""

    def totals(self, at: int) -> dict[int, Totals]:
        """Microseconds by node rank and class, open and closed accounts."""
        for account in self._open.values():
            self._settle(account, at)
        both = {rank: dict(totals) for rank, totals in self._closed.items()}
        both.update((rank, dict(account.totals)) for rank, account in self._open.items())
        return dict(sorted(both.items()))

    def check(self) -> None:
        """Every account's classes sum to its wall time, exactly.

        Raises:
            BrokenInvariantError: they do not.
        """
        for rank, account in self._open.items():
            wall = account.brought + account.since - account.opened
            total = sum(account.totals.values())
            ensure(total == wall, f"node {rank}: classes sum to {total}, wall time is {wall}")
            least = min(account.totals.values(), default=0)
            ensure(least >= 0, f"node {rank}: a class has {least} microseconds")
            ensure(rank not in self._closed, f"node {rank} has two accounts")
