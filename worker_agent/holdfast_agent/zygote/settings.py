"""Settings of the zygote; values only, handed over by the agent, which reads them."""

from __future__ import annotations

import signal
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

DEFAULT_PRELOAD: Final = (
    "torch",
    "torch.distributed",
    "torch.distributed.checkpoint",
    "torch.distributed.fsdp",
    "torch.nn.parallel",
    "torch._dynamo",
    "torch.distributed.checkpoint.state_dict",
    "torch.utils.serialization.config",
)
"""Imported before the first fork. `torch._dynamo` is there because constructing any optimizer
imports it (seconds, cold)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ZygoteSettings:
    """How the zygote prepares itself and its workers."""

    local_world_size: int
    """Workers per round on this node; decides the default thread count as torchrun's does."""
    user_variables: Mapping[str, str | None] = field(default_factory=dict)
    """The user's own values of the thread variables, as `import_torch` returned them (None:
    unset); workers get these back."""
    preload: tuple[str, ...] = DEFAULT_PRELOAD
    """Modules to import before the first fork; one that is missing is skipped and named in the
    zygote's log, one that starts a thread, a descriptor or CUDA ends forking."""
    fork: bool = True
    """False: always start fresh interpreters (slow, for debugging imports)."""
    lease_check_s: float = 0.05
    """Least seconds between looks at the agent's lease; 50 ms adds ≤ 1.3 % to the 4 s of the lease.
    While it cannot be stale yet nobody looks. Workers read the limit in the page, too."""
    stack_signal: int = signal.SIGRTMAX - 3
    """Signal for stack dumps; a real-time signal because scripts and launchers use SIGUSR1 and
    SIGUSR2 for their own ends."""
    log_path: str | None = None
    """File for the zygote's own few lines; None: the agent's stderr."""
