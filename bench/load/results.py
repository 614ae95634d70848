"""One measurement. Pure: no files, no clock."""

from dataclasses import dataclass, field

OURS = "holdfast"
PEER = "dlrover"

STEADY = "steady"
"""Agents train and say so; nothing happens."""
WORLD = "world"
"""The first world is decided and delivered."""
FAILURE = "failure"
"""A worker fails and everybody is told."""
HERD = "herd"
"""The master is killed and started again; everybody comes back at once."""
WATCHERS = "watchers"
SLOW_AGENT = "slow agent"
SLOW_WATCHER = "slow watcher"


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadResult:
    """The figures of one scenario at one size."""

    system: str
    scenario: str
    clients: int
    variant: str = ""
    """Other differences: the interval, the transport, the message."""
    figures: dict[str, float] = field(default_factory=dict)
    """By name; the unit is the name's ending (_s, _ms, _us, _mb, _cores), a count has none."""
    samples: dict[str, list[float]] = field(default_factory=dict)
    """The single values behind a median, by the same names."""
    load: float = 0.0
    """The machine's load average over a minute when the measurement began."""
    limits: str = ""
    """The obstacle to what was asked for; empty: none."""
