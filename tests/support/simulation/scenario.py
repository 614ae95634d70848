"""A scenario: sizes, habits of the world, and the schedule of faults. All of it is data.

Belongs here: the values and their drawing from a seed. Does not belong here: what a fault does
(`faults`). The same scenario gives the same run, bit for bit; a part of its schedule is a scenario
as well, which is what makes shrinking possible.
"""

from __future__ import annotations

import ast
import dataclasses
import random
import textwrap
from collections.abc import Mapping


def _number(value: float) -> str:
    return str(int(value)) if value == int(value) else repr(value)


@dataclasses.dataclass(frozen=True, slots=True)
class Fault:
    """One thing that goes wrong, or that somebody wants."""

    at: float
    """When, s."""
    what: str
    """A key of `faults.FAULTS`."""
    who: int = 0
    """Node rank; the next living node if there is none. For faults without a node: a choice."""
    span: float = 0.0
    """How long it lasts, s."""

    @classmethod
    def of(cls, at: str, what: str, who: str = "0", span: str = "0") -> Fault:
        """A fault as `text` writes it."""
        return cls(float(at), what, int(who), float(span))

    def text(self) -> str:
        """Its fields in a line, without the last ones where these are 0."""
        words = [_number(self.at), self.what, str(self.who), _number(self.span)]
        return " ".join(words[: 4 if self.span else 3 if self.who else 2])


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """Everything that a run depends on."""

    seed: int
    """Of what is not in the schedule: delays of messages, processes and people."""
    replicas: int = 4
    minimum: int = 1
    maximum: int = 8
    unit: int = 1
    standbys: int = 0
    local: int = 1
    """Processes of a node."""
    sdk: bool = True
    join_window: float = 0.0
    heartbeat: float = 2.0
    """Between two heartbeats, s: the master's setting."""
    raises: float = 0.5
    """Chance that a survivor's collective raises; otherwise it hangs."""
    replace_delay: float = 0.5
    store_failures: float = 0.0
    masterless: float = 600.0
    """How long agents train on without a master, s."""
    budget: int = 10_000
    """Limit of each budget."""
    policy: int = 1
    """holdfast_wire.messages.SuccessPolicy."""
    skew: float = 0.0
    """Agents' clocks run up to this share faster or slower."""
    commits: float = 0.0
    """How often agents look for new steps to keep and to write, s; 0: there are no checkpoints."""
    samples: bool = False
    """Agents send their ranks' collectives. Scenarios that were found before they did stay without:
    each message more changes a run's course."""
    nodes_per_replica: int = 0
    """Nodes of a replica under local SGD; 0: all nodes are one world."""
    acts: bool = False
    """Slow nodes leave, and hangs are ended: spec.health says Act."""
    faults: tuple[Fault, ...] = ()

    def code(self) -> str:
        """Python that makes this scenario, to be pasted into a test."""
        sizes = " ".join(
            f"{field.name}={getattr(self, field.name)!r}"
            for field in dataclasses.fields(self)
            if field.name != "faults" and getattr(self, field.name) != field.default
        )
        # No line breaks within a fault: its parts are held together until all are wrapped.
        faults = ", ".join(one.text().replace(" ", "\xa0") for one in self.faults)
        lines = [*_wrapped(sizes), *_wrapped(faults)]
        return "\n".join(["pasted(", *lines, ")"]).replace("\xa0", " ")


def _wrapped(text: str) -> list[str]:
    """An argument in as many lines as it needs."""
    lines = textwrap.wrap(text, 88) or [""]
    return [*(f'    "{line} "' for line in lines[:-1]), f'    "{lines[-1]}",']


def pasted(sizes: str, faults: str = "") -> Scenario:
    """A scenario as `Scenario.code` writes it: `name=value` of what is not usual, and faults."""
    pairs = (one.partition("=") for one in sizes.split())
    given = {name: ast.literal_eval(value) for name, _, value in pairs}
    found = (one.split() for one in faults.split(", ") if one)
    return Scenario(**given, faults=tuple(Fault.of(*words) for words in found))


WEIGHTS: Mapping[str, float] = {
    "kill_worker": 5,
    "raise_worker": 3,
    "exit_worker": 1,
    "crash_agent": 3,
    "vanish": 2,
    "restart_agent": 1,
    "crash_zygote": 1,
    "fail_agent": 1,
    "freeze_agent": 2,
    "pause_node": 2,
    "blip": 3,
    "cut": 2,
    "cut_up": 1,
    "cut_down": 1,
    "cut_half": 1,
    "cut_all": 1,
    "cut_peers": 1,
    "doubt_node": 1,
    "slow_node": 1,
    "evict": 2,
    "leave": 1,
    "drain": 2,
    "restart_round": 1,
    "restart_node": 1,
    "scale": 2,
    "stacks": 1,
    "checkpoint": 1,
    "suspend": 1,
    "respec": 1,
    "operator_gone": 1,
    "operator_late": 1,
    "operator_repeats": 2,
    "stall_master": 1,
    "kill_master": 2,
    "tear_journal": 1,
    "lose_journal": 1,
    "zombie_master": 1,
    "twin_master": 1,
    "slow_disk": 1,
    "full_disk": 1,
    "jump_clock": 1,
    "stores_fail": 1,
    "stop_job": 0.2,
    "stop_request": 0.2,
    "suspend_in_check": 0.0,
    "notice": 0.0,
    "straggle": 0.0,
    "wear_out": 0.0,
    "hang_rank": 0.0,
    "set_clock": 0.0,
}
"""How often each fault is drawn, relative to the others; 0: only in a crossing, or in place of
others (`announced`, `ailing`)."""
SPANS: Mapping[str, tuple[float, float]] = {
    "freeze_agent": (0.5, 14.0),
    "pause_node": (0.5, 14.0),
    "cut": (0.2, 14.0),
    "cut_up": (0.2, 14.0),
    "cut_down": (0.2, 14.0),
    "cut_half": (0.2, 14.0),
    "cut_all": (0.2, 14.0),
    "cut_peers": (1.0, 20.0),
    "doubt_node": (0.5, 14.0),
    "slow_node": (1.0, 10.0),
    "straggle": (18.0, 30.0),
    "wear_out": (6.0, 20.0),
    "hang_rank": (15.0, 25.0),
    "evict": (0.2, 8.0),
    "notice": (0.2, 8.0),
    "suspend": (0.1, 8.0),
    "operator_gone": (0.1, 6.0),
    "operator_late": (1.0, 8.0),
    "stall_master": (0.5, 20.0),
    "kill_master": (0.05, 6.0),
    "tear_journal": (0.05, 6.0),
    "lose_journal": (0.05, 6.0),
    "zombie_master": (0.5, 16.0),
    "twin_master": (0.5, 6.0),
    "slow_disk": (0.5, 5.0),
    "full_disk": (0.5, 5.0),
    "stores_fail": (0.5, 5.0),
    "stop_request": (0.0, 10.0),
}
"""Least and greatest span of those that last, s."""
CROSSED = 0.2
"""Share of the seeds whose schedule has a crossing as well."""
CROSSINGS: tuple[tuple[tuple[str, float, float, float], ...], ...] = (
    (("stop_job", 0.0, 12.0, 0.0), ("stop_job", 0.0, 0.1, 0.0)),
    (("stop_job", 0.0, 12.0, 0.0), ("stop_request", 0.0, 0.1, 5.0)),
    (("checkpoint", 1.0, 12.0, 0.0), ("suspend", 0.0, 1.0, 5.0)),
    (
        # The second suspension meets nodes that look through what they are to start from, and have
        # nothing in memory that would have to be written first.
        ("suspend", 3.0, 8.0, 1.0),
        ("suspend_in_check", 1.1, 1.5, 12.0),
    ),
    (
        # A start breaks while its nodes look through a checkpoint, and the next waits for a store.
        ("crash_agent", 2.0, 10.0, 0.0),
        ("stores_fail", 0.05, 0.5, 3.0),
        ("exit_worker", 0.0, 2.0, 0.0),
    ),
    (
        # Masters are lost while nothing else goes wrong: the job must not notice.
        ("lose_journal", 12.0, 20.0, 1.0),
        ("kill_master", 8.0, 10.0, 1.0),
    ),
    (
        # A node goes together with the master, or only seems to, and the operator says so.
        ("vanish", 3.0, 12.0, 0.0),
        ("doubt_node", 0.0, 0.1, 14.0),
        ("lose_journal", 0.0, 0.1, 1.0),
    ),
    (
        # Two masters each have a round of their own to end.
        ("exit_worker", 2.0, 8.0, 0.0),
        ("zombie_master", 0.0, 0.05, 4.0),
        ("restart_node", 2.0, 4.0, 0.0),
    ),
)
"""Faults that meet, or come when all is quiet, as chance does not have it, each: what, how long
after the one before it (least and greatest, s), for how long (s)."""
PAUSES = (0.0, 0.0, 0.01, 0.05, 0.2, 0.6, 1.2, 2.5)
"""Longest pause before the next fault, s; one of them is chosen."""


def draw(seed: int, *, nodes: int | None = None, faults: int | None = None) -> Scenario:
    """A scenario from a seed; `nodes` and `faults` fix its size instead of drawing it."""
    luck = random.Random(seed)
    unit = luck.choice((1, 1, 1, 1, 2))
    size = luck.choice((1, 2, 2, 3, 4, 4, 5, 6, 8, 12)) if nodes is None else nodes
    replicas = max(unit, size)
    smallest = max(1, min(replicas, luck.choice((1, 1, 2, replicas))) // unit) * unit
    count = luck.choice((3, 5, 8, 12, 16)) if faults is None else faults
    return Scenario(
        seed=seed,
        replicas=replicas,
        minimum=smallest,
        maximum=max(smallest, (replicas + luck.choice((-1, 0, 0, 1, 4))) // unit * unit),
        unit=unit,
        standbys=luck.choice((0, 0, 0, 1, 2)),
        local=luck.choice((1, 1, 1, 2)),
        sdk=luck.random() < 0.95,
        join_window=luck.choice((0.0, 0.0, 3.0)),
        heartbeat=luck.choice((0.5, 1.0, 2.0, 2.0, 3.0, 3.0)),
        raises=luck.choice((0.0, 0.5, 1.0)),
        replace_delay=luck.choice((0.05, 0.5, 3.0)),
        store_failures=luck.choice((0.0, 0.0, 0.0, 0.2)),
        masterless=luck.choice((600.0, 600.0, 4.0)),
        budget=luck.choice((10_000, 10_000, 10_000, 10_000, 3)),
        policy=luck.choice((1, 1, 1, 2, 3)),
        skew=luck.choice((0.0, 0.0, 0.01)),
        commits=random.Random(f"{seed}/commits").choice((0.0, 0.3, 1.0)),
        samples=True,
        faults=_crossed(seed, _schedule(luck, replicas, count), replicas),
    )


def announced(scenario: Scenario) -> Scenario:
    """Return a scenario in which a cloud gives notice of what the given one evicts or drains."""
    faults = (
        dataclasses.replace(fault, what="notice", span=fault.span or 2.0)
        if fault.what in {"evict", "drain", "leave"}
        else fault
        for fault in scenario.faults
    )
    return dataclasses.replace(scenario, faults=tuple(faults))


_AILMENTS = ("straggle", "straggle", "wear_out", "hang_rank", "hang_rank", "set_clock")
_LEAD = (16.0, 26.0)
"""Before each ailment, s: a world shows its pace first."""


def ailing(scenario: Scenario) -> Scenario:
    """Return a scenario in which nodes are slow, hang, wear out and have wrong clocks.

    In half of them nothing else happens, so that masters have no excuse; in the others some of the
    given one's faults do, at other times.
    """
    luck = random.Random(f"{scenario.seed}/ailing")
    at, found = 0.0, []
    for what in luck.choices(_AILMENTS, k=luck.choice((1, 2, 3))):
        at += luck.uniform(*_LEAD)
        span = luck.uniform(*SPANS[what]) if what in SPANS else 0.0
        found.append(Fault(round(at, 4), what, luck.randrange(scenario.replicas), round(span, 4)))
        at += span * luck.choice((0.3, 1.0, 1.0, 1.0))  # now and then the next one meets it
    others = luck.sample(scenario.faults, min(len(scenario.faults), luck.choice((0, 0, 1, 3))))
    moved = (dataclasses.replace(one, at=round(luck.uniform(0.0, at), 4)) for one in others)
    faults = tuple(sorted((*found, *moved), key=lambda fault: fault.at))
    return dataclasses.replace(scenario, sdk=True, faults=faults)


_ENDED_SECONDS = (30.0, 45.0)
"""Span of a hang that a master ends, s: it is long enough for the evidence and a new round."""


def acting(scenario: Scenario) -> Scenario:
    """Return a scenario of ailing nodes whose masters act on what they find."""
    luck = random.Random(f"{scenario.seed}/acting")
    found = ailing(scenario)
    faults = tuple(
        dataclasses.replace(fault, span=round(luck.uniform(*_ENDED_SECONDS), 4))
        if fault.what == "hang_rank"
        else fault
        for fault in found.faults
    )
    return dataclasses.replace(found, acts=True, faults=faults)


def _schedule(luck: random.Random, nodes: int, count: int) -> tuple[Fault, ...]:
    kinds, weights = list(WEIGHTS), list(WEIGHTS.values())
    at, found = luck.uniform(0.0, 3.0), []
    for what in luck.choices(kinds, weights, k=count):
        span = luck.uniform(*SPANS[what]) if what in SPANS else 0.0
        found.append(Fault(round(at, 4), what, luck.randrange(nodes), round(span, 4)))
        at += luck.choice(PAUSES) * luck.random()
    return tuple(found)


def _crossed(seed: int, schedule: tuple[Fault, ...], nodes: int) -> tuple[Fault, ...]:
    luck = random.Random(f"{seed}/crossing")
    if luck.random() >= CROSSED:
        return schedule
    found, at = list(schedule), 0.0
    for what, least, most, span in luck.choice(CROSSINGS):
        at += luck.uniform(least, most)
        found.append(Fault(round(at, 4), what, luck.randrange(nodes), span))
    return tuple(sorted(found, key=lambda fault: fault.at))
