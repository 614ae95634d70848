"""Environment that Holdfast sets in a job's pods: the contract with agents and with torchrun.

It is the same in a cluster and on a laptop. The names are the wire's; their meaning is the agent's
business.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Final

from holdfast_operator.plan.pods import PodSlot, Role
from holdfast_operator.spec.job import JobSpec
from holdfast_wire import keys


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class PodIdentity:
    """Identity of a pod."""

    job: str
    namespace: str
    job_uid: str
    slot: PodSlot
    pod_name: str
    pod_uid: str
    master: str
    """host:port of the job master."""
    tls_dir: str
    """Directory with the pod's certificate; only workers have one."""


_Value = Callable[[JobSpec, PodIdentity], str]
_OF_ALL: Final[Mapping[str, _Value]] = {
    keys.ENV_MASTER: lambda _, who: who.master,
    keys.ENV_JOB: lambda _, who: who.job,
    keys.ENV_JOB_UID: lambda _, who: who.job_uid,
    keys.ENV_POD_UID: lambda _, who: who.pod_uid,
}
_OF_WORKERS: Final[Mapping[str, _Value]] = {
    keys.ENV_NODE_RANK: lambda _, who: str(who.slot.index),
    keys.ENV_TLS_DIR: lambda _, who: who.tls_dir,
    keys.ENV_NPROC_PER_NODE: lambda spec, _: str(spec.nproc_per_node),
    keys.ENV_NNODES: lambda spec, _: f"{spec.size.least}:{spec.size.most}",
}
_OF_TORCHRUN: Final[Mapping[str, _Value]] = {
    keys.PET_RDZV_BACKEND: lambda *_: keys.RDZV_BACKEND,
    keys.PET_RDZV_ENDPOINT: _OF_ALL[keys.ENV_MASTER],
    keys.PET_RDZV_ID: _OF_ALL[keys.ENV_JOB_UID],
    keys.PET_NNODES: _OF_WORKERS[keys.ENV_NNODES],
    keys.PET_NODE_RANK: _OF_WORKERS[keys.ENV_NODE_RANK],
    keys.PET_NPROC_PER_NODE: _OF_WORKERS[keys.ENV_NPROC_PER_NODE],
}
RESERVED: Final = frozenset({*_OF_ALL, *_OF_WORKERS, *_OF_TORCHRUN})
"""Names that a template cannot set, because Holdfast sets them."""


def contract(spec: JobSpec, who: PodIdentity) -> dict[str, str]:
    """Return the variables that Holdfast sets in a pod.

    Pods of extra roles are not part of the world: they only learn which job they belong to.
    """
    worker = who.slot.role is Role.WORKER
    table = {**_OF_ALL, **_OF_WORKERS, **_OF_TORCHRUN} if worker else _OF_ALL
    return {name: value(spec, who) for name, value in table.items()}
