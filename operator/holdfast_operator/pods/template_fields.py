"""Fields of core/v1 in a pod template, and those that a plain process honours.

Data only. The CRD passes a pod's spec through unread, so without a cluster a misspelt field would
go unnoticed.
"""

from __future__ import annotations

from typing import Final

POD_USED: Final = frozenset({"containers", "terminationGracePeriodSeconds"})
POD_IGNORED: Final = frozenset(
    """
    activeDeadlineSeconds affinity automountServiceAccountToken dnsConfig dnsPolicy
    enableServiceLinks ephemeralContainers hostAliases hostIPC hostNetwork hostPID hostUsers
    hostname hostnameOverride imagePullSecrets initContainers nodeName nodeSelector os overhead
    preemptionPolicy priority priorityClassName readinessGates resourceClaims resources
    restartPolicy runtimeClassName schedulerName schedulingGates schedulingGroup securityContext
    serviceAccount serviceAccountName setHostnameAsFQDN shareProcessNamespace subdomain
    tolerations topologySpreadConstraints volumes workloadRef
    """.split()  # noqa: SIM905, so many words read better as text
)
CONTAINER_USED: Final = frozenset({"name", "command", "args", "env", "workingDir"})
CONTAINER_REFUSED: Final = frozenset({"envFrom"})
CONTAINER_IGNORED: Final = frozenset(
    """
    image imagePullPolicy lifecycle livenessProbe ports readinessProbe resizePolicy resources
    restartPolicy restartPolicyRules securityContext startupProbe stdin stdinOnce
    terminationMessagePath terminationMessagePolicy tty volumeDevices volumeMounts
    """.split()  # noqa: SIM905, so many words read better as text
)
POD: Final = POD_USED | POD_IGNORED
CONTAINER: Final = CONTAINER_USED | CONTAINER_REFUSED | CONTAINER_IGNORED
ENV: Final = frozenset({"name", "value", "valueFrom"})
FIELD_REFS: Final = ("metadata.name", "metadata.namespace", "metadata.uid")
"""Values of `valueFrom.fieldRef` that work without a cluster."""
