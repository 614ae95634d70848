"""torchrun's contract with a worker: environment and arguments. A pure computation.

Checked against torch 2.15, `elastic/agent/server/local_elastic_agent.py`. `log_files` adds the name
of the error file; the zygote adds page, round and thread counts.
"""

from __future__ import annotations

from collections.abc import Mapping
from string import Template

from holdfast_agent.config.launch import Launch
from holdfast_agent.config.settings import Settings
from holdfast_agent.zygote.protocol import ScriptMode
from holdfast_wire import keys
from holdfast_wire.messages import WorldAssignment
from holdfast_wire.proto_json import to_json
from holdfast_wire.tiers import TIERS, by_tier

WITHHELD = (keys.ENV_MASTER, keys.ENV_TLS_DIR, keys.ENV_POD_UID, keys.ENV_ARENA_SOCKET)
"""Variables of an agent that workers do not get: a launcher inside a worker would otherwise take
this node's place."""


def environment(
    settings: Settings, assignment: WorldAssignment, local_rank: int, inherited: Mapping[str, str]
) -> dict[str, str]:
    """Return the variables that one worker gets over the inherited environment.

    assignment: The world; all of its nodes have the same role.
    local_rank: 0 to `assignment.local_world_size` - 1.
    inherited: Environment of the agent.
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
        "TORCHELASTIC_RUN_ID": settings.job,
        "TORCHELASTIC_USE_AGENT_STORE": "True",
        "TORCHELASTIC_SIGNALS_TO_HANDLE": launch.signal_names,
        "TORCH_NCCL_ASYNC_ERROR_HANDLING": inherited.get("TORCH_NCCL_ASYNC_ERROR_HANDLING", "1"),
    }
    return {**variables, **_devices(launch, local_rank, inherited)}


def schedule(assignment: WorldAssignment) -> str:
    """Return a rank's first schedule of saves, `memory:storage`; empty: none is set."""
    every = by_tier(assignment.intervals)
    if not (assignment.keeps_checkpoints and all(every.values())):
        return ""
    return ":".join(str(every[tier]) for tier in TIERS)


def checkpoint(assignment: WorldAssignment) -> dict[str, str]:
    """Return the variable with the job's checkpoint policy; none: an inherited one counts."""
    if assignment.checkpoint is None:
        return {}
    return {keys.ENV_CHECKPOINT: to_json(assignment.checkpoint)}


def arguments(launch: Launch, local_rank: int) -> tuple[ScriptMode, tuple[str, ...]]:
    """Return the mode and the words that the zygote starts for a local rank."""
    values = {"local_rank": str(local_rank)}
    args = tuple(Template(arg).safe_substitute(values) for arg in launch.args)
    if launch.no_python:
        return ScriptMode.BINARY, (launch.script, *args)
    if launch.interpreter is not None:
        module = ("-m",) if launch.module else ()
        return ScriptMode.BINARY, (launch.interpreter, "-u", *module, launch.script, *args)
    return (ScriptMode.MODULE if launch.module else ScriptMode.SCRIPT), (launch.script, *args)


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
