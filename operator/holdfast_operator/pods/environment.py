"""Environment that Holdfast sets in a job's pods: the contract with agents and with torchrun.

It is the same in a cluster and on a laptop. The names are the wire's; their meaning is the agent's
business.
"""

from __future__ import annotations

import dataclasses
from typing import Final

from holdfast_operator.plan.pods import PodSlot, Role
from holdfast_operator.spec.job import JobSpec
from holdfast_wire import keys

RESERVED: Final = frozenset(
    {
        keys.ENV_MASTER,
        keys.ENV_JOB,
        keys.ENV_JOB_UID,
        keys.ENV_NODE_RANK,
        keys.ENV_POD_UID,
        keys.ENV_TLS_DIR,
        keys.ENV_NPROC_PER_NODE,
        keys.ENV_NNODES,
        keys.PET_RDZV_BACKEND,
        keys.PET_RDZV_ENDPOINT,
        keys.PET_RDZV_ID,
        keys.PET_NNODES,
        keys.PET_NODE_RANK,
        keys.PET_NPROC_PER_NODE,
    }
)
"""Names that a template cannot set, because Holdfast sets them."""


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


def contract(spec: JobSpec, who: PodIdentity) -> dict[str, str]:
    """Return the variables that Holdfast sets in a pod.

    Pods of extra roles are not part of the world: they only learn which job they belong to.
    """
    names = {
        keys.ENV_MASTER: who.master,
        keys.ENV_JOB: who.job,
        keys.ENV_JOB_UID: who.job_uid,
        keys.ENV_POD_UID: who.pod_uid,
    }
    if who.slot.role is not Role.WORKER:
        return names
    size, rank = spec.size, str(who.slot.index)
    nodes, processes = f"{size.least}:{size.most}", str(spec.nproc_per_node)
    return {
        **names,
        keys.ENV_NODE_RANK: rank,
        keys.ENV_TLS_DIR: who.tls_dir,
        keys.ENV_NPROC_PER_NODE: processes,
        keys.ENV_NNODES: nodes,
        keys.PET_RDZV_BACKEND: keys.RDZV_BACKEND,
        keys.PET_RDZV_ENDPOINT: who.master,
        keys.PET_RDZV_ID: who.job_uid,
        keys.PET_NNODES: nodes,
        keys.PET_NODE_RANK: rank,
        keys.PET_NPROC_PER_NODE: processes,
    }
