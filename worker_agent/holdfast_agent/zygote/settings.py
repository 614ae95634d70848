"""Settings of the zygote: values only. The agent reads them and passes them on."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

BOOTSTRAP: Final = str(Path(__file__).with_name("bootstrap.py"))
"""Entry of a fresh interpreter, run as a file: `-m` would search the user's working directory for
its imports first."""


def bootstrap_command(*arguments: str, flags: Sequence[str] = ()) -> list[str]:
    """Return the command of a fresh interpreter that runs BOOTSTRAP.

    It has the flags of this interpreter (`-O`, `-W`, `-X`, …), as a forked process has.

    *arguments: Of BOOTSTRAP.
    flags: More flags of python.
    """
    own: list[str] = subprocess._args_from_interpreter_flags()  # type: ignore[attr-defined]  # noqa: SLF001 - as multiprocessing does
    known = {flag.partition("=")[0] for flag in own}
    others = [
        f"-X{name}" if value is True else f"-X{name}={value}"
        for name, value in sys._xoptions.items()  # noqa: SLF001 - there is no other name for them
        if name not in known
    ]
    return [sys.executable, *own, *others, *flags, BOOTSTRAP, *arguments]


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
"""Modules that workers need not import themselves. `torch._dynamo` is there because constructing
any optimizer imports it (seconds, cold)."""

DEFERRABLE: Final = frozenset(DEFAULT_PRELOAD) - {"torch", "torch.distributed", "torch.nn.parallel"}
"""Modules of the default list that a script may do without: together they take as long to import as
torch itself."""

REPLICA_PRELOAD: Final = ("holdfast.replicas.replicated", "holdfast.data.batches")
"""Modules of replicas that come and go: 0.1 to 0.2 s on a busy node, in which the others do the
work of the one that was lost."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ZygoteSettings:
    """Settings for the zygote's own preparation and its workers."""

    local_world_size: int
    """Workers per round on this node; it decides the default thread count, as in torchrun."""
    user_variables: Mapping[str, str | None] = field(default_factory=dict)
    """The user's own values of the thread variables, from `import_torch` (None: unset); workers get
    them back."""
    preload: tuple[str, ...] = DEFAULT_PRELOAD
    """Modules to import before the first fork. A missing one is skipped and named in the zygote's
    log. One that starts a thread, a descriptor or CUDA ends forking."""
    deferred_preload: tuple[str, ...] = ()
    """Modules to import once a round has run for `deferred_preload_s`: the first round does not
    wait for them, later ones have them. An import keeps the zygote from its other work for up to
    seconds."""
    replica_preload: tuple[str, ...] = REPLICA_PRELOAD
    """More deferred modules, once a round has a roster of replicas."""
    deferred_preload_s: float = 10.0
    """Seconds from a round's start to the deferred imports: by then a script has done its own,
    which need the same CPUs."""
    fork: bool = True
    """False: always start fresh interpreters (slow, for debugging imports)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FreshZygote:
    """Description of a zygote that was not forked from its agent, for its fresh interpreter."""

    agent: int
    """Process of the agent."""
    channel: int = -1
    """Descriptor of the zygote's end of the control channel."""
    page: int
    """Descriptor of the shared page."""
    path: tuple[str, ...]
    """The agent's sys.path."""
    torch: bool
    """True: the agent has imported torch, so the fresh zygote must import it for its workers."""
    problem: str = ""
    """Reason for not forking workers; empty: they may be forked."""
    settings: ZygoteSettings
