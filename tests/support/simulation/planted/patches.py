"""The way to plant a bug: a function of the real code gives way to a wrong one for a while."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

from simulation import scenario
from simulation.scenario import Scenario

Patch = tuple[Any, str, Any]
"""Owner, name, and what it is to be."""
Wrong = TypeVar("Wrong", bound=Callable[..., Any])


@dataclasses.dataclass(frozen=True, slots=True)
class Bug:
    """One thing that is wrong."""

    name: str
    what: str
    patches: Callable[[], list[Patch]]
    turned: Callable[[Scenario], Scenario]
    """The kind of scenario in which it is found, made of a drawn one."""

    def draw(self, seed: int) -> Scenario:
        """A scenario in which it may be found."""
        return self.turned(scenario.draw(seed))


class Bugs(dict[str, Bug]):
    """Bugs by name, which one kind of scenario shows."""

    def __init__(self, turned: Callable[[Scenario], Scenario] = lambda drawn: drawn) -> None:
        super().__init__()
        self._turned = turned

    def patched(self, name: str, what: str) -> Callable[[Wrong], Wrong]:
        """Add a bug by the function that makes its patches."""

        def add(patches: Wrong) -> Wrong:
            self[name] = Bug(name, what, patches, self._turned)
            return patches

        return add

    def wrong(
        self, name: str, what: str, owner: object, attribute: str
    ) -> Callable[[Wrong], Wrong]:
        """Add a bug by what takes the place of a function: it gets the right one first."""

        def add(instead: Wrong) -> Wrong:
            self.patched(name, what)(
                lambda: [(owner, attribute, _after(vars(owner)[attribute], instead))]
            )
            return instead

        return add


def _after(right: Any, instead: Callable[..., Any]) -> Any:
    if isinstance(right, property):
        return property(lambda owner: instead(right.fget, owner))
    return lambda *given, **named: instead(right, *given, **named)


@contextlib.contextmanager
def planted(bug: Bug) -> Iterator[None]:
    """Let the code be wrong for a while."""
    saved: list[Patch] = []
    try:
        for owner, name, wrong in bug.patches():
            saved.append((owner, name, vars(owner)[name]))
            setattr(owner, name, wrong)
        yield
    finally:
        for owner, name, right in reversed(saved):
            setattr(owner, name, right)
