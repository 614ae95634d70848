"""The zygote: a process that has imported torch and forks workers in milliseconds.

`handle` is the agent's side, `loop` the zygote's own, `child` and `script` what happens in a
worker between fork and the user's first line, `tree` how process trees are killed, `store` the
TCPStore process. An agent imports what it needs from here. Nothing in this package knows about
masters, rendezvous or budgets, and no module imports torch at its top.
"""

from holdfast_agent.zygote.errors import ZygoteError
from holdfast_agent.zygote.handle import Zygote
from holdfast_agent.zygote.messages import (
    Event,
    Failure,
    ForkDisabled,
    LeaseExpired,
    Mode,
    Ready,
    RoundDead,
    SpawnRank,
    SpawnRound,
    StacksDumped,
    StoreExited,
    StoreReady,
    WorkerExited,
    WorkerStarted,
    ZygoteExited,
)
from holdfast_agent.zygote.preload import import_torch
from holdfast_agent.zygote.settings import DEFAULT_PRELOAD, ZygoteSettings

__all__ = [
    "DEFAULT_PRELOAD",
    "Event",
    "Failure",
    "ForkDisabled",
    "LeaseExpired",
    "Mode",
    "Ready",
    "RoundDead",
    "SpawnRank",
    "SpawnRound",
    "StacksDumped",
    "StoreExited",
    "StoreReady",
    "WorkerExited",
    "WorkerStarted",
    "Zygote",
    "ZygoteError",
    "ZygoteExited",
    "ZygoteSettings",
    "import_torch",
]
