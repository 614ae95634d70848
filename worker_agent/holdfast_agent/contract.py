"""torchrun's contract with a worker: its environment and its arguments. A pure computation.

Checked against torch 2.15, `elastic/agent/server/local_elastic_agent.py`. The error file's name is
added by `logs`, the page's and the round's by the zygote, thread counts by the zygote too.
"""

from __future__ import annotations

from collections.abc import Mapping
from string import Template

from holdfast_agent.config import Settings
from holdfast_agent.launch import Launch
from holdfast_agent.zygote import Mode
from holdfast_wire import keys
from holdfast_wire.messages import WorldAssignment

WITHHELD = (keys.ENV_MASTER, keys.ENV_TLS_DIR, keys.ENV_POD_UID, keys.ENV_ARENA_SOCKET)
"""An agent's own variables that workers do not get: a launcher inside a worker would otherwise
take this node's place."""


def run_id(settings: Settings) -> str:
    """Return TORCHELASTIC_RUN_ID: the job's name."""
    return settings.job


def environment(
    settings: Settings,
    assignment: WorldAssignment,
    local_rank: int,
    inherited: Mapping[str, str],
) -> dict[str, str]:
    """Return what is set over the inherited environment for one worker.

    Args:
        settings: the agent's.
        assignment: the world; all of its nodes have the same role.
        local_rank: 0 to `assignment.local_world_size` - 1.
        inherited: the agent's own environment.
    """
    launch = settings.launch
    rank, size = str(assignment.base_rank + local_rank), str(assignment.world_size)
    variables = {
        "RANK": rank,
        "GROUP_RANK": str(assignment.group_rank),
        "ROLE_RANK": rank,
        "ROLE_NAME": launch.role,
        "LOCAL_WORLD_SIZE": str(assignment.local_world_size),
        "WORLD_SIZE": size,
        "GROUP_WORLD_SIZE": str(assignment.group_world_size),
        "ROLE_WORLD_SIZE": size,
        "MASTER_ADDR": assignment.store_host,
        "MASTER_PORT": str(assignment.store_port),
        "TORCHELASTIC_RESTART_COUNT": str(assignment.restart_count),
        "TORCHELASTIC_MAX_RESTARTS": str(assignment.max_restarts),
        "TORCHELASTIC_RUN_ID": run_id(settings),
        "TORCHELASTIC_USE_AGENT_STORE": "True",
        "TORCHELASTIC_SIGNALS_TO_HANDLE": launch.signal_names,
        "TORCH_NCCL_ASYNC_ERROR_HANDLING": inherited.get("TORCH_NCCL_ASYNC_ERROR_HANDLING", "1"),
    }
    return {**variables, **_devices(launch, local_rank, inherited)}


def schedule(assignment: WorldAssignment) -> str:
    """Return the steps between checkpoints that a rank begins with; empty: none are set."""
    if not (assignment.keeps_checkpoints and assignment.memory_every and assignment.storage_every):
        return ""
    return f"{assignment.memory_every}:{assignment.storage_every}"


def keep(assignment: WorldAssignment) -> str:
    """Return the committed checkpoints that stay, `last:every`; empty: the job says nothing."""
    if not assignment.keep_last:
        return ""
    return f"{assignment.keep_last}:{assignment.keep_every}"


def arguments(launch: Launch, local_rank: int) -> tuple[Mode, tuple[str, ...]]:
    """Return how and what the zygote starts for a local rank."""
    values = {"local_rank": str(local_rank)}
    args = tuple(Template(arg).safe_substitute(values) for arg in launch.args)
    if launch.no_python:
        return Mode.BINARY, (launch.script, *args)
    if launch.interpreter is not None:
        module = ("-m",) if launch.module else ()
        return Mode.BINARY, (launch.interpreter, "-u", *module, launch.script, *args)
    return (Mode.MODULE if launch.module else Mode.SCRIPT), (launch.script, *args)


def _devices(launch: Launch, local_rank: int, inherited: Mapping[str, str]) -> dict[str, str]:
    """Return LOCAL_RANK, and with --virtual-local-rank the one device that the worker sees."""
    if not launch.virtual_local_rank:
        return {"LOCAL_RANK": str(local_rank)}
    # On ROCm the HIP variable is the one that counts.
    hip = inherited.get("HIP_VISIBLE_DEVICES")
    visible = hip or inherited.get("CUDA_VISIBLE_DEVICES")
    devices = visible.split(",") if visible is not None else []
    device = devices[local_rank].strip() if local_rank < len(devices) else str(local_rank)
    chosen = {"LOCAL_RANK": "0", "CUDA_VISIBLE_DEVICES": device}
    return {**chosen, "HIP_VISIBLE_DEVICES": device} if hip else chosen
