"""Outer roster of a job: the replicas that synchronise from an epoch on, and where they meet.

Belongs here: the value, its text, and what makes a roster unusable. Does not belong here: who is in
it, which the job's master decides, and the plan of units after a change (`roster`).
"""

from __future__ import annotations

import dataclasses
import json
from typing import Any

from holdfast.local_sgd.errors import RosterError


@dataclasses.dataclass(frozen=True, slots=True)
class OuterRoster:
    """Replicas of one epoch; a change of any kind makes another epoch."""

    epoch: int
    """Counts changes, from 1; a rank follows the greatest that it has seen."""
    replicas: tuple[int, ...]
    """Members in the order of their ranks in a sync group. Processes that replace others come under
    a new number: survivors see by the numbers that a member is lost."""
    store: str
    """`host:port` of the torch.distributed.TCPStore where the members of this epoch meet."""
    since: tuple[int, ...] = ()
    """Epoch since which each replica has been in all rosters, in their order; empty: not known. One
    that was out in between has left its groups, also where nobody saw the roster without it."""

    def __post_init__(self) -> None:
        """Refuse what no group can be made of; raises RosterError."""
        if self.epoch < 1:
            raise RosterError(f"epoch={self.epoch}: epochs count from 1")
        if not self.replicas or len(set(self.replicas)) < len(self.replicas):
            raise RosterError(f"replicas={self.replicas}: name one or more, each once")
        if min(self.replicas) < 0:
            raise RosterError(f"replicas={self.replicas}: a replica's number is 0 or more")
        if self.since and len(self.since) != len(self.replicas):
            raise RosterError(f"since={self.since}: name an epoch for each of {self.replicas}")
        host, _, port = self.store.rpartition(":")
        if not host or not port.isdecimal() or not 0 < int(port) < 65536:
            raise RosterError(f"store={self.store!r}: expected host:port, such as 10.0.0.7:29500")

    @property
    def address(self) -> tuple[str, int]:
        """Host and port of the store."""
        host, _, port = self.store.rpartition(":")
        return host.strip("[]"), int(port)

    def has_lost(self, newest: OuterRoster | None) -> bool:
        """Return True if a member of this roster is out by a newer one, or was in between."""
        if newest is None or newest.epoch <= self.epoch:
            return False
        since = dict(zip(newest.replicas, newest.since, strict=False))
        stays = set(newest.replicas)
        return any(one not in stays or since.get(one, 0) > self.epoch for one in self.replicas)

    def to_text(self) -> str:
        """Return the roster as one line of JSON."""
        return json.dumps(dataclasses.asdict(self))

    @classmethod
    def from_text(cls, text: str) -> OuterRoster:
        """Parse what `to_text` returns; names that a later version adds are passed over.

        Raises:
            RosterError: the text is no roster; the message names the field.
        """
        try:
            given: Any = json.loads(text)
            epoch, replicas, store = given["epoch"], given["replicas"], given["store"]
        except (ValueError, KeyError, TypeError) as error:
            raise RosterError(
                f"roster {text[:200]!r}: expected JSON with epoch, replicas and store ({error!r})"
            ) from error
        if type(epoch) is not int or not isinstance(store, str):
            raise RosterError(f"epoch={epoch!r}, store={store!r}: expected a number and host:port")
        if not isinstance(replicas, list) or any(type(one) is not int for one in replicas):
            raise RosterError(f"replicas={replicas!r}: expected a list of numbers")
        since = given.get("since", ())
        if not isinstance(since, list | tuple) or any(type(one) is not int for one in since):
            raise RosterError(f"since={since!r}: expected a list of epochs")
        return cls(epoch, tuple(replicas), store, tuple(since))
