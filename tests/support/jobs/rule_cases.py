"""Objects at the edges of every rule of the CRD: some that it accepts, some that it refuses.

For the local check and for a real API server, which must agree.
"""

from __future__ import annotations

from typing import Any, Final

from jobs.job_files import TEMPLATE, job

_EXIT: Final = {"operator": "In", "values": [2, 126]}


def _rule(**matchers: Any) -> dict[str, Any]:
    return job(failurePolicy__rules=[{"action": "FailJob", **matchers}])


ACCEPTED: Final = {
    "the shortest job": job(),
    "a name of 45 characters": job("a" * 45),
    "minReplicas equal to replicas": job(minReplicas=4),
    "maxReplicas equal to replicas": job(maxReplicas=4),
    "nodeUnit equal to maxReplicas": job(minReplicas=8, replicas=8, maxReplicas=8, nodeUnit=8),
    "nodeUnit that divides replicas": job(nodeUnit=2),
    "replicas between two multiples": job(replicas=5, minReplicas=4, maxReplicas=8, nodeUnit=2),
    "replicas of two workers": job(replicaPolicy={"nodesPerReplica": 2}),
    "replicas of two workers in units of four": job(
        nodeUnit=4, replicaPolicy={"nodesPerReplica": 2}
    ),
    "replicas of two workers under their older name": job(localSGD={"replicaNodes": 2}),
    "replicas of two workers under both names": job(
        replicaPolicy={"nodesPerReplica": 2}, localSGD={"replicaNodes": 2}
    ),
    "nprocPerNode auto": job(nprocPerNode="auto"),
    "nprocPerNode gpu": job(nprocPerNode="gpu"),
    "nprocPerNode cpu": job(nprocPerNode="cpu"),
    "nprocPerNode 1": job(nprocPerNode=1),
    "nprocPerNode 1024": job(nprocPerNode=1024),
    "another manager": job(managedBy="kueue.x-k8s.io/multikueue"),
    "a rule on exit codes of a container": _rule(onExitCodes={"containerName": "worker", **_EXIT}),
    "a rule on exit codes of the first container": job(
        worker__template__spec={"containers": [{"name": "trainer"}, {"name": "sidecar"}]},
        failurePolicy__rules=[
            {"action": "FailJob", "onExitCodes": {"containerName": "trainer", **_EXIT}}
        ],
    ),
    "a rule on exit codes other than 0": _rule(onExitCodes={"operator": "NotIn", "values": [0]}),
    "a rule on a pod condition": _rule(onPodConditions=[{"type": "DisruptionTarget"}]),
    "a rule on a log pattern": _rule(onLogPattern="CUDA error"),
    "memory to be raised": job(failurePolicy={"memory": {"raisePercent": 20, "maxMemory": "64Gi"}}),
    "votes equal to votesOutOf": job(health__straggler={"votes": 5, "votesOutOf": 5}),
    "a checkpoint at deletion with a path": job(checkpoint={"onDelete": True, "path": "/x"}),
    "a checkpoint interval of Auto": job(checkpoint__memory__interval="Auto"),
    "a checkpoint interval of 1": job(checkpoint__storage__interval=1),
    "a journal on a claim": job(
        master__journal={"mode": "PersistentVolumeClaim", "claimName": "x"}
    ),
    "an extra role": job(extraRoles=[{"name": "eval", "template": TEMPLATE}]),
    "an override for the workers": job(podTemplateOverrides=[{"manager": "m"}]),
    "an override for the master": job(podTemplateOverrides=[{"manager": "m", "role": "master"}]),
    "an override for an extra role": job(
        extraRoles=[{"name": "eval", "template": TEMPLATE}],
        podTemplateOverrides=[{"manager": "m", "role": "eval"}],
    ),
    "the same manager for two roles": job(
        podTemplateOverrides=[{"manager": "m"}, {"manager": "m", "role": "master"}]
    ),
    "an unknown field inside a pod": job(
        worker__template__spec={"containers": [{"name": "w", "imagee": "x"}], "foo": 1}
    ),
}
REFUSED: Final = {
    "an extra role with a dash": (
        job(extraRoles=[{"name": "eval-big", "template": TEMPLATE}]),
        ["spec.extraRoles[0].name"],
    ),
    "a name of 46 characters": (job("a" * 46), ["metadata.name"]),
    "a name that starts with a digit": (job("1a"), ["metadata.name"]),
    "a name with a dot": (job("a.b"), ["metadata.name"]),
    "a name that ends with a dash": (job("a-"), ["metadata.name"]),
    "memory to be raised without a most": (
        job(failurePolicy={"memory": {"raisePercent": 20}}),
        ["spec.failurePolicy.memory.maxMemory"],
    ),
    "memory to be raised by nothing": (
        job(failurePolicy={"memory": {"raisePercent": 0, "maxMemory": "64Gi"}}),
        ["spec.failurePolicy.memory.raisePercent"],
    ),
    "a most memory that is no quantity": (
        job(failurePolicy={"memory": {"raisePercent": 20, "maxMemory": "64GB"}}),
        ["spec.failurePolicy.memory.maxMemory"],
    ),
    "minReplicas above replicas": (job(minReplicas=5), ["spec.replicas"]),
    "maxReplicas below replicas": (job(maxReplicas=3), ["spec.replicas"]),
    "minReplicas above maxReplicas": (
        job(minReplicas=9, maxReplicas=3, replicas=5),
        ["spec.replicas", "spec.replicas", "spec.minReplicas"],
    ),
    "nodeUnit above replicas": (job(nodeUnit=5), ["spec.nodeUnit", "spec.replicas"]),
    "nodeUnit 0": (job(nodeUnit=0, minReplicas=1, maxReplicas=8), ["spec.nodeUnit"]),
    "nodeUnit that does not divide replicas": (job(nodeUnit=3), ["spec.replicas"]),
    "nodeUnit that does not divide minReplicas": (
        job(minReplicas=3, nodeUnit=2),
        ["spec.minReplicas"],
    ),
    "nodeUnit that does not divide maxReplicas": (
        job(maxReplicas=5, nodeUnit=2),
        ["spec.maxReplicas"],
    ),
    "replicas that are not whole": (
        job(replicaPolicy={"nodesPerReplica": 3}),
        ["spec.replicas"],
    ),
    "minReplicas that is no whole number of replicas": (
        job(minReplicas=3, replicaPolicy={"nodesPerReplica": 2}),
        ["spec.minReplicas"],
    ),
    "maxReplicas that is no whole number of replicas": (
        job(maxReplicas=5, replicaPolicy={"nodesPerReplica": 2}),
        ["spec.maxReplicas"],
    ),
    "nodeUnit that is no whole number of replicas": (
        job(replicas=6, nodeUnit=3, replicaPolicy={"nodesPerReplica": 2}),
        ["spec.nodeUnit"],
    ),
    "replicaPolicy without nodesPerReplica": (
        job(replicaPolicy={}),
        ["spec.replicaPolicy.nodesPerReplica"],
    ),
    "replicas that are not whole under their older name": (
        job(replicas=5, minReplicas=3, maxReplicas=7, nodeUnit=1, localSGD={"replicaNodes": 2}),
        ["spec.replicas", "spec.minReplicas", "spec.maxReplicas"],
    ),
    "units of no whole number of replicas under their older name": (
        job(replicas=6, nodeUnit=3, localSGD={"replicaNodes": 2}),
        ["spec.nodeUnit"],
    ),
    "localSGD without replicaNodes": (job(localSGD={}), ["spec.localSGD.replicaNodes"]),
    "nodes of a replica under both names that differ": (
        job(replicaPolicy={"nodesPerReplica": 2}, localSGD={"replicaNodes": 4}),
        ["spec.localSGD"],
    ),
    "nodes of a replica under both names, of which one is 0": (
        job(replicaPolicy={"nodesPerReplica": 0}, localSGD={"replicaNodes": 4}),
        ["spec.replicaPolicy.nodesPerReplica"],
    ),
    "replicas 0": (job(replicas=0), ["spec.replicas"]),
    "nprocPerNode 0": (job(nprocPerNode=0), ["spec.nprocPerNode"]),
    "nprocPerNode tpu": (job(nprocPerNode="tpu"), ["spec.nprocPerNode"]),
    "nprocPerNode 8 as a text": (job(nprocPerNode="8"), ["spec.nprocPerNode"]),
    "nprocPerNode 1025": (job(nprocPerNode=1025), ["spec.nprocPerNode"]),
    "a manager without a domain": (job(managedBy="foo"), ["spec.managedBy"]),
    "a rule with two matchers": (
        _rule(onLogPattern="x", onExitCodes=_EXIT),
        ["spec.failurePolicy.rules[0]"],
    ),
    "a rule without a matcher": (_rule(), ["spec.failurePolicy.rules[0]"]),
    "a rule that fails at success": (
        _rule(onExitCodes={"operator": "In", "values": [0]}),
        ["spec.failurePolicy.rules[0].onExitCodes.values"],
    ),
    "a rule with the same code twice": (
        _rule(onExitCodes={"operator": "In", "values": [1, 1]}),
        ["spec.failurePolicy.rules[0].onExitCodes.values[1]"],
    ),
    "a rule on a container beside the training": (
        job(
            worker__template__spec={"containers": [{"name": "worker"}, {"name": "sidecar"}]},
            failurePolicy__rules=[
                {"action": "FailJob", "onExitCodes": {"containerName": "sidecar", **_EXIT}}
            ],
        ),
        ["spec.failurePolicy.rules"],
    ),
    "a rule on an unknown container": (
        _rule(onExitCodes={"containerName": "nope", **_EXIT}),
        ["spec.failurePolicy.rules"],
    ),
    "more votes than verdicts": (
        job(health__straggler={"votes": 6}),
        ["spec.health.straggler.votes"],
    ),
    "a checkpoint at deletion without a path": (
        job(checkpoint__onDelete=True),
        ["spec.checkpoint.onDelete"],
    ),
    "a checkpoint interval of 0": (
        job(checkpoint__memory__interval=0),
        ["spec.checkpoint.memory.interval"],
    ),
    "a checkpoint interval with a unit": (
        job(checkpoint__storage__interval="5m"),
        ["spec.checkpoint.storage.interval"],
    ),
    "a journal on no claim": (
        job(master__journal={"mode": "PersistentVolumeClaim"}),
        ["spec.master.journal.claimName"],
    ),
    "a claim without a journal on it": (
        job(master__journal={"claimName": "x"}),
        ["spec.master.journal.claimName"],
    ),
    "an extra role named worker": (
        job(extraRoles=[{"name": "worker", "template": TEMPLATE}]),
        ["spec.extraRoles[0].name"],
    ),
    "two extra roles of one name": (
        job(extraRoles=[{"name": "e", "template": TEMPLATE}] * 2),
        ["spec.extraRoles[1]"],
    ),
    "an override for an unknown role": (
        job(podTemplateOverrides=[{"manager": "m", "role": "evaluator"}]),
        ["spec.podTemplateOverrides"],
    ),
    "the same manager for one role": (
        job(podTemplateOverrides=[{"manager": "m"}, {"manager": "m", "role": "worker"}]),
        ["spec.podTemplateOverrides[1]"],
    ),
    "no containers": (
        job(worker={"template": {"spec": {"containers": []}}}),
        ["spec.worker.template.spec.containers"],
    ),
    "no worker": ({**job(), "spec": {"replicas": 1}}, ["spec.worker"]),
    "a mode that YAML read as false": (job(health__hang__mode=False), ["spec.health.hang.mode"]),
    "an unknown field": (job(relpicas=3), ["spec.relpicas"]),
    "an unknown field inside a group": (job(health__hang__mod="Act"), ["spec.health.hang.mod"]),
}
"""Each with the fields that are to blame, in any order."""

ROLES: Final = [{"name": "eval", "template": TEMPLATE}, {"name": "ps", "template": TEMPLATE}]
