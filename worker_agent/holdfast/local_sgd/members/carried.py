"""State of a script for joiners, besides the model: schedulers, scalers, counters, by name.

Belongs here: their states as bytes, and the way of those back into the holders. Does not belong
here: when a joiner is given them, and how.
"""

from __future__ import annotations

from collections.abc import Mapping

from holdfast.flash.trainer.leaves import Stateful
from holdfast.flash.trainer.values import decode_value, encode_value


class Carried:
    """The holders of one rank, and the states that it was given for them."""

    def __init__(self) -> None:
        """Begin with none."""
        self._holders: dict[str, Stateful] = {}
        self._given: dict[str, bytes] = {}

    def add(self, name: str, one: Stateful) -> bool:
        """Give later joiners the state of this too; return True if this rank was given one for it.

        Raises:
            StateError: the state is no plain data: told now, and not at the first joiner.
        """
        self._holders[name] = one
        self.states()
        return name in self._given

    def states(self) -> dict[str, bytes]:
        """Return the states of all holders as they are now; raises StateError."""
        return {
            name: encode_value(
                f"carry({name!r}): the state_dict() of this {type(one).__name__}", one.state_dict()
            )
            for name, one in self._holders.items()
        }

    def take(self, given: Mapping[str, bytes]) -> None:
        """Take the states of others; `load` brings them into the holders."""
        self._given = dict(given)

    def load(self) -> None:
        """Load what was given, as far as the script has named its holders by now."""
        for name in self._given.keys() & self._holders.keys():
            self._holders[name].load_state_dict(decode_value(name, self._given.pop(name)))
