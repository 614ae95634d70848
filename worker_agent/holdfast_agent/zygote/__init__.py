"""The zygote: a process that has imported torch and forks workers in milliseconds.

`handle` is the agent's side, `loop` the zygote's own. `child` and `script` are the steps of a
worker between its fork and the user's first line. `process_tree` kills process trees;
`store_process` is the TCPStore's process. An agent imports everything from here. Nothing in this
package knows about masters, rendezvous or budgets, and no module imports torch at its top.
"""

from holdfast_agent.zygote.errors import ZygoteError
from holdfast_agent.zygote.handle import Zygote, ZygoteControl
from holdfast_agent.zygote.preload import import_torch
from holdfast_agent.zygote.protocol import (
    Event,
    Failure,
    ForkDisabled,
    LeaseExpired,
    Ready,
    RoundDead,
    ScriptMode,
    SpawnRank,
    SpawnRound,
    StoreExited,
    StoreReady,
    WorkerExitedEvent,
    WorkerStarted,
    ZygoteExited,
)
from holdfast_agent.zygote.settings import DEFAULT_PRELOAD, DEFERRABLE, ZygoteSettings

__all__ = [
    "DEFAULT_PRELOAD",
    "DEFERRABLE",
    "Event",
    "Failure",
    "ForkDisabled",
    "LeaseExpired",
    "Ready",
    "RoundDead",
    "ScriptMode",
    "SpawnRank",
    "SpawnRound",
    "StoreExited",
    "StoreReady",
    "WorkerExitedEvent",
    "WorkerStarted",
    "Zygote",
    "ZygoteControl",
    "ZygoteError",
    "ZygoteExited",
    "ZygoteSettings",
    "import_torch",
]
