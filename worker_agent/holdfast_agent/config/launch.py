"""Request of the command line, as frozen values. `flags` parses them."""

from __future__ import annotations

import dataclasses
import signal
from collections.abc import Mapping


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class LogFlags:
    """Destination of the workers' output; the texts are torchrun's own formats, checked."""

    log_dir: str | None = None
    """--log-dir; None: a temporary directory."""
    redirects: str = "0"
    """--redirects, for example `3` or `0:1,1:2`."""
    tee: str = "0"
    """--tee, same format."""
    ranks_filter: frozenset[int] | None = None
    """--local-ranks-filter; None: all ranks are shown."""
    prefix_template: str | None = None
    """--log-line-prefix-template; None: `[${role_name}${local_rank}]:`."""
    stdout_filters: tuple[str, ...] = ()
    """--duplicate-stdout-filters."""
    stderr_filters: tuple[str, ...] = ()
    """--duplicate-stderr-filters."""
    specs: str | None = None
    """--logs-specs: name of a `torchrun.logs_specs` entry point; None: torch's default."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """Request to start workers on this node, from flags and PET_* variables."""

    script: str
    """Script, module or program, as it was given."""
    args: tuple[str, ...] = ()
    """Its arguments; `${local_rank}` is replaced in each, as torchrun does."""
    module: bool = False
    """-m: `script` is a module."""
    no_python: bool = False
    """--no-python: `script` is a program."""
    interpreter: str | None = None
    """PYTHON_EXEC: another Python than the agent's runs the script; None: the agent's own."""
    min_nodes: int = 1
    """--nnodes, lower bound."""
    max_nodes: int = 1
    """--nnodes, upper bound."""
    node_rank: int = 0
    """--node-rank; a job master's HOLDFAST_NODE_RANK takes its place."""
    local_world_size: int = 1
    """--nproc-per-node, resolved to a number."""
    max_restarts: int | None = None
    """--max-restarts; None: not given, the job's failure budget holds (torchrun: 0)."""
    role: str = "default"
    """--role, for ROLE_NAME and log prefixes."""
    rdzv_id: str | None = None
    """--rdzv-id, the run id of a standalone run; None: not given."""
    signals: tuple[int, ...] = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)
    """--signals-to-handle: each ends the agent, workers first."""
    signal_names: str = "SIGTERM,SIGINT,SIGHUP,SIGQUIT"
    """The same as it was given, for TORCHELASTIC_SIGNALS_TO_HANDLE."""
    shutdown_seconds: float = 30.0
    """--shutdown-timeout or TORCH_ELASTIC_SHUTDOWN_TIMEOUT: SIGTERM to SIGKILL when the agent
    itself is ended, s. 30 is torchrun's default."""
    virtual_local_rank: bool = False
    """--virtual-local-rank: LOCAL_RANK is 0 everywhere, each worker sees one GPU."""
    numa: str | None = None
    """--numa-binding mode."""
    worker_server: bool = True
    """--no-worker-server: False: the ranks do not serve torch's flight recorder, so that stragglers
    and hangs are seen only where the script uses the SDK."""
    local_addr: str | None = None
    """--local-addr: address at which other nodes reach this one; None: found by itself."""
    logs: LogFlags = dataclasses.field(default_factory=LogFlags)
    """Destination of the workers' output."""
    given: frozenset[str] = frozenset()
    """Names (`master_addr`) of flags that were given, on the command line or as PET_*."""
    from_environment: Mapping[str, str] = dataclasses.field(default_factory=dict)
    """Flags that came from PET_* variables only, with their values."""

    def source(self, name: str) -> str:
        """Return the flag or the variable that a value (`local_addr`) came from."""
        dashed = f"--{name.replace('_', '-')}"
        return f"PET_{name.upper()}" if name in self.from_environment else dashed
