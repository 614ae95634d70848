"""The goodput accounts of all nodes."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from holdfast_master.policies.goodput import Totals, entries, summed
from holdfast_wire.messages import GoodputClass, GoodputEntry


@dataclasses.dataclass(slots=True)
class Account:
    """The seconds of one node."""

    kind: GoodputClass
    """The class that is running."""
    since: int
    """Microseconds on the master's clock."""
    totals: Totals
    begun: int
    """When it was opened, less what was counted before that, microseconds."""
    incident: str = ""
    """Incident that the running class is a cost of."""
    recent: int = 0
    """PRODUCTIVE microseconds in the current world: what a roll-back can take away."""


class GoodputLedger:
    """The accounts of all nodes, by node rank."""

    def __init__(self) -> None:
        self._open: dict[int, Account] = {}
        self._closed: dict[int, Account] = {}
        self._costs: dict[str, Totals] = {}
        self._sums: Totals = {}
        self._running: dict[GoodputClass, tuple[int, int]] = {}
        """Class to the number of accounts in it and the sum of their starts."""

    def bring(self, totals: Mapping[int, Totals]) -> None:
        """Take over what an earlier master counted; the accounts stay closed."""
        for rank, classes in totals.items():
            self._closed[rank] = Account(GoodputClass.WAITING, 0, dict(classes), 0)
        self._sums = summed([self._sums, *totals.values()])

    def open(self, rank: int, kind: GoodputClass, at: int) -> None:
        """Begin to count a node; one that is counted already goes on."""
        if rank in self._open:
            return
        before = self._closed.pop(rank, None)
        totals = before.totals if before is not None else {}
        self._open[rank] = Account(kind, at, totals, at - sum(totals.values()))
        self._run(kind, 1, at)

    def _run(self, kind: GoodputClass, count: int, start: int) -> None:
        running, starts = self._running.get(kind, (0, 0))
        self._running[kind] = (running + count, starts + start)

    def close(self, rank: int, at: int) -> Totals:
        """Stop counting a node; its totals so far."""
        account = self._open.pop(rank, None)
        if account is None:
            closed = self._closed.get(rank)
            return dict(closed.totals) if closed is not None else {}
        self._settle(account, at)
        self._run(account.kind, -1, -account.since)
        self._closed[rank] = account
        return dict(account.totals)

    def turn(self, rank: int, kind: GoodputClass, at: int, incident: str = "") -> None:
        """Count the node's time from `at` on as this class, perhaps as the cost of an incident."""
        account = self._open.get(rank)
        if account is None or (account.kind is kind and account.incident == incident):
            return
        self._settle(account, at)
        self._run(account.kind, -1, -account.since)
        account.kind, account.incident = kind, incident
        self._run(account.kind, 1, account.since)

    def kind(self, rank: int) -> GoodputClass:
        """The running class; UNSPECIFIED: the node is not counted."""
        account = self._open.get(rank)
        return GoodputClass.UNSPECIFIED if account is None else account.kind

    def begin_world(self, at: int) -> None:
        """A new world trains: what was productive before cannot be taken away any more."""
        for account in self._open.values():
            self._settle(account, at)
            account.recent = 0
        for account in self._closed.values():
            account.recent = 0

    def reclassify(
        self, rank: int, amount: int, kind: GoodputClass, at: int, incident: str = ""
    ) -> int:
        """Move up to `amount` PRODUCTIVE microseconds of the newest world to `kind`.

        Also of a node that is gone: its work is lost as well.
        """
        account = self._open.get(rank)
        if account is not None:
            self._settle(account, at)
        else:
            account = self._closed.get(rank)
        if account is None:
            return 0
        moved = max(0, min(amount, account.recent))
        if moved:
            account.recent -= moved
            self._count(account, GoodputClass.PRODUCTIVE, -moved)
            self._count(account, kind, moved)
            self._cost(incident, kind, moved)
        return moved

    def _settle(self, account: Account, at: int) -> None:
        spent = at - account.since
        if not spent:
            return
        account.since = at
        self._run(account.kind, 0, spent)
        self._count(account, account.kind, spent)
        if account.kind is GoodputClass.PRODUCTIVE:
            account.recent += spent
        self._cost(account.incident, account.kind, spent)

    def _count(self, account: Account, kind: GoodputClass, spent: int) -> None:
        account.totals[kind] = account.totals.get(kind, 0) + spent
        self._sums[kind] = self._sums.get(kind, 0) + spent

    def _cost(self, incident: str, kind: GoodputClass, spent: int) -> None:
        if incident:
            costs = self._costs.setdefault(incident, {})
            costs[kind] = costs.get(kind, 0) + spent

    def bring_cost(self, incident: str, totals: Totals) -> None:
        """Take over what an open incident had cost under an earlier master."""
        if totals:
            self._costs[incident] = dict(totals)

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

    def whole(self, at: int) -> Totals:
        """Microseconds by class of all nodes together, without a look at each."""
        totals = dict(self._sums)
        for kind, (count, starts) in self._running.items():
            totals[kind] = totals.get(kind, 0) + count * at - starts
        return {kind: spent for kind, spent in totals.items() if spent}

    def totals(self, at: int) -> dict[int, Totals]:
        """Microseconds by node rank and class, nodes that are gone included."""
        for account in self._open.values():
            self._settle(account, at)
        accounts = {**self._closed, **self._open}
        return {rank: dict(accounts[rank].totals) for rank in sorted(accounts)}
