"""Local SGD by EDiT (arXiv 2412.07210): replicas step alone and agree on their weights in rounds.

Belongs here: settings, decisions (`policies`), the engine on torch (`sync`), and the hooks of DDP
and of other frameworks. Does not belong here: who is a member of the job, which its master decides.
No module imports torch before it is used.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from holdfast.local_sgd.config import GTAConfig, LocalSGDConfig, OuterOptimizerConfig
    from holdfast.local_sgd.errors import LocalSGDConfigError, LocalSGDError
    from holdfast.local_sgd.files import load_local_sgd_state_dict, save_local_sgd_state_dict
    from holdfast.local_sgd.frameworks.ddp import OuterOptimPeriodicModelAverager
    from holdfast.local_sgd.frameworks.ddp_optimizer import (
        StatefulPostLocalSGDOptimizer,
        local_sgd_under_ddp,
    )
    from holdfast.local_sgd.frameworks.fsdp1 import HybridShardLocalSGD
    from holdfast.local_sgd.frameworks.fsdp2 import LocalSGD
    from holdfast.local_sgd.megatron import (
        MegatronLocalSGD,
        local_sgd_args_provider,
        patch_megatron_for_local_sgd,
    )
    from holdfast.local_sgd.members.members import (
        RosterMembers,
        StaticMembers,
        members_of_environment,
        mesh_of,
    )
    from holdfast.local_sgd.sync.configured import edit_settings

__all__ = [
    "GTAConfig",
    "HybridShardLocalSGD",
    "LocalSGD",
    "LocalSGDConfig",
    "LocalSGDConfigError",
    "LocalSGDError",
    "MegatronLocalSGD",
    "OuterOptimPeriodicModelAverager",
    "OuterOptimizerConfig",
    "RosterMembers",
    "StatefulPostLocalSGDOptimizer",
    "StaticMembers",
    "edit_settings",
    "load_local_sgd_state_dict",
    "local_sgd_args_provider",
    "local_sgd_under_ddp",
    "members_of_environment",
    "mesh_of",
    "patch_megatron_for_local_sgd",
    "save_local_sgd_state_dict",
]
_MODULES = {
    "GTAConfig": "config",
    "HybridShardLocalSGD": "frameworks.fsdp1",
    "LocalSGD": "frameworks.fsdp2",
    "LocalSGDConfig": "config",
    "LocalSGDConfigError": "errors",
    "LocalSGDError": "errors",
    "MegatronLocalSGD": "megatron",
    "OuterOptimPeriodicModelAverager": "frameworks.ddp",
    "OuterOptimizerConfig": "config",
    "RosterMembers": "members.members",
    "StatefulPostLocalSGDOptimizer": "frameworks.ddp_optimizer",
    "StaticMembers": "members.members",
    "edit_settings": "sync.configured",
    "load_local_sgd_state_dict": "files",
    "local_sgd_args_provider": "megatron",
    "local_sgd_under_ddp": "frameworks.ddp_optimizer",
    "patch_megatron_for_local_sgd": "megatron",
    "members_of_environment": "members.members",
    "mesh_of": "members.members",
    "save_local_sgd_state_dict": "files",
}


def __getattr__(name: str) -> Any:
    """Import a name's module on first use: the policies need none of the others."""
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
