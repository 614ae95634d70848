"""Rules of a foreign kind's fields: each is mapped, dropped with a comment, or refused.

A kind is a table of rules. `judge` looks every written field up in it, so that no field is lost
without a word: one that the table does not know is refused. Pure.
"""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from holdfast_operator.spec.problems import Path, show_path, show_value

ANY_KEY: Final = "*"
ANY_ITEM: Final = "[]"


class Outcome(enum.Enum):
    """Fate of a field."""

    MAPPED = "mapped"
    """The ElasticJob says the same."""
    DROPPED = "dropped"
    """Nothing is lost without it; a comment says why."""
    REFUSED = "refused"
    """The job would behave otherwise without it; a person has to decide."""


@dataclasses.dataclass(frozen=True, slots=True)
class Rule:
    """Fate of a field, and of all fields below it."""

    path: str
    """Path with dots; `*` stands for any key, `[]` for any item of a list."""
    outcome: Outcome
    reason: str = ""
    """Reason for dropping or refusing, with the remedy; where a mapped field goes."""
    harmless: tuple[Any, ...] = (None, {}, [])
    """Values that ask for nothing: a refused or dropped field with one of them needs no word."""


@dataclasses.dataclass(frozen=True, slots=True)
class Finding:
    """A field that the ElasticJob does not have."""

    field: str
    """Path of the field, for people."""
    outcome: Outcome
    reason: str
    value: str = ""

    def __str__(self) -> str:
        """Return one sentence: field, value and reason."""
        shown = f" ({self.value.strip('()')})" if self.value else ""
        return f"{self.field}{shown}: {self.reason}"


def mapped(*paths: str) -> tuple[Rule, ...]:
    """Return rules of fields that the ElasticJob says too."""
    return tuple(Rule(path, Outcome.MAPPED) for path in paths)


def dropped(path: str, reason: str, *harmless: Any) -> Rule:
    """Return the rule of a field that is not needed."""
    return Rule(path, Outcome.DROPPED, reason, (None, {}, [], *harmless))


def refused(path: str, reason: str, *harmless: Any) -> Rule:
    """Return the rule of a field without a counterpart."""
    return Rule(path, Outcome.REFUSED, reason, (None, {}, [], *harmless))


def refused_even_empty(path: str, reason: str) -> Rule:
    """Return the rule of a field that decides by being there, as in `jax: {}`."""
    return Rule(path, Outcome.REFUSED, reason, (None,))


def judge(body: Mapping[str, Any], rules: Sequence[Rule]) -> Iterator[Finding]:
    """Yield each written field of an object that is dropped or refused, in the file's order.

    A field below a dropped or refused one is not named again.
    """
    table = {tuple(rule.path.split(".")): rule for rule in rules}
    yield from _walk(body, (), (), table)


def find_rule(path: str, rules: Sequence[Rule]) -> Rule | None:
    """Return the rule of a schema's path such as `spec.envs{}.name`; None: nothing is said."""
    table = {tuple(rule.path.split(".")): rule for rule in rules}
    steps = tuple(path.replace("[]", ".[]").replace("{}", ".*").split("."))
    for length in range(len(steps), 0, -1):
        found = _lookup(steps[:length], table)
        if found is not None:
            return found
    return None


def _walk(
    value: Any, path: Path, pattern: tuple[str, ...], table: Mapping[tuple[str, ...], Rule]
) -> Iterator[Finding]:
    rule = _lookup(pattern, table)
    if rule is not None and rule.outcome is Outcome.MAPPED:
        return
    if rule is not None:
        if value not in rule.harmless:
            yield Finding(show_path(path), rule.outcome, rule.reason, show_value(value))
        return
    if isinstance(value, dict) and (value or not pattern):
        for key, child in value.items():
            yield from _walk(child, (*path, key), (*pattern, key), table)
    elif isinstance(value, list) and value:
        for at, child in enumerate(value):
            yield from _walk(child, (*path, at), (*pattern, ANY_ITEM), table)
    elif value is not None and not (value in ({}, []) and _leads_on(pattern, table)):
        unknown = "is no field that this version of holdfast knows; remove it, or say what it does"
        yield Finding(show_path(path), Outcome.REFUSED, unknown, show_value(value))


def _lookup(steps: tuple[str, ...], table: Mapping[tuple[str, ...], Rule]) -> Rule | None:
    """Return the rule of exactly this path; a rule that names the key wins over one with `*`."""
    if steps in table:
        return table[steps]
    for known, rule in table.items():
        if len(known) == len(steps) and _covers(known, steps):
            return rule
    return None


def _leads_on(steps: tuple[str, ...], table: Mapping[tuple[str, ...], Rule]) -> bool:
    """Return True if a rule is about a field below this path."""
    return any(len(known) > len(steps) and _covers(known, steps) for known in table)


def _covers(known: tuple[str, ...], steps: tuple[str, ...]) -> bool:
    """Return True if a rule's path begins with these steps."""
    return all(word in (ANY_KEY, step) for word, step in zip(known, steps, strict=False))
