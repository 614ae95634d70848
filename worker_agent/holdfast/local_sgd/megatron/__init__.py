"""EDiT and A-EDiT for Megatron-core: flags, groups, hooks, and one call that patches Megatron-LM.

```python
from holdfast.local_sgd.megatron import local_sgd_args_provider, patch_megatron_for_local_sgd

patch_megatron_for_local_sgd()  # before Megatron is initialised
pretrain(..., extra_args_provider=local_sgd_args_provider)
```

A script with a loop of its own passes `replica_groups()` to `DistributedDataParallel` and makes a
`MegatronLocalSGD`; it patches nothing. Megatron is imported on first use.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from holdfast.local_sgd.megatron.arguments import local_sgd_args_provider
    from holdfast.local_sgd.megatron.groups import replica_groups
    from holdfast.local_sgd.megatron.patch import patch_megatron_for_local_sgd
    from holdfast.local_sgd.megatron.training import MegatronLocalSGD, local_sgd_of

__all__ = [
    "MegatronLocalSGD",
    "local_sgd_args_provider",
    "local_sgd_of",
    "patch_megatron_for_local_sgd",
    "replica_groups",
]
_MODULES = {
    "MegatronLocalSGD": "training",
    "local_sgd_args_provider": "arguments",
    "local_sgd_of": "training",
    "patch_megatron_for_local_sgd": "patch",
    "replica_groups": "groups",
}


def __getattr__(name: str) -> Any:
    """Import a name's module on first use: flags need no torch."""
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
