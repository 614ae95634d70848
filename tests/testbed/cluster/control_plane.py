"""etcd, kube-apiserver, kube-controller-manager and kube-scheduler on loopback, for one test run.

The pods' network is a private namespace, which the process kubelet makes; the API server is told
addresses of that network where it publishes its own.
"""

from __future__ import annotations

import contextlib
import dataclasses
import random
import shutil
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

from cluster.api import Api
from cluster.children import Child
from cluster.papers import write_papers
from cluster.tools import tools_folder
from house.patience import patience

START_SECONDS: Final = 120.0
"""Until everything is ready, s: 5 where the machine has nothing else to do. As all limits of tests
it grows with the machine's slowness: one that starts torch four times took 86 in CI."""
_POLL_SECONDS: Final = 0.05
_CONTROLLERS: Final = (
    "clusterrole-aggregation-controller",
    "deployment-controller",
    "disruption-controller",
    "endpointslice-controller",
    "garbage-collector-controller",
    "horizontal-pod-autoscaler-controller",
    "job-controller",
    "namespace-controller",
    "node-lifecycle-controller",
    "persistentvolume-binder-controller",
    "persistentvolume-protection-controller",
    "persistentvolumeclaim-protection-controller",
    "podgroup-protection-controller",
    "pod-garbage-collector-controller",
    "replicaset-controller",
    "resourcequota-controller",
    "root-ca-certificate-publisher-controller",
    "serviceaccount-controller",
    "taint-eviction-controller",
)
"""Those that the tests need. All of them take five seconds longer until the first account."""
_CHECKED: Final = "NodeRestriction,OwnerReferencesPermissionEnforcement"
"""Admission plugins beyond the default ones. The second is off by default, and without it nobody
would notice a missing right to set finalizers."""

_GATES: Final = "--feature-gates=GenericWorkload=true,TopologyAwareWorkloadScheduling=true"
"""Pods are scheduled in groups (beta in 1.37, off by default), and a group in one place (alpha)."""


class ClusterError(RuntimeError):
    """The control plane did not start; carries the end of the log that says why."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Ports:
    """The components' ports on loopback."""

    etcd: int
    peer: int
    api: int
    controllers: int
    scheduler: int

    @classmethod
    def free(cls) -> Ports:
        """Ports that nobody listens at now."""
        names, numbers = [field.name for field in dataclasses.fields(cls)], set[int]()
        while len(numbers) < len(names):
            numbers.add(free_port())
        return cls(**dict(zip(names, numbers, strict=True)))


def free_port() -> int:
    """Return a port that nobody listens at now, outside the range that the kernel hands out.

    One of that range may become the near end of a connection before its server starts.
    """
    while True:
        port = random.SystemRandom().randrange(10_000, 30_000)
        with socket.socket() as one, contextlib.suppress(OSError):
            one.bind(("127.0.0.1", port))
            return port


class ControlPlane:
    """One control plane with its data in `folder`."""

    def __init__(self, folder: Path, *, node_grace_s: int = 4, toleration_s: int = 2) -> None:
        """Choose its ports and write its papers; nothing runs yet.

        Args:
            folder: Of its data.
            node_grace_s: How long a node may be silent; Kubernetes' own: 40 to 50. Longer on a slow
                machine, where one process is all kubelets.
            toleration_s: How long pods stay on a node that is; Kubernetes' own: 300. Likewise.
        """
        self.folder = folder
        self._node_grace_s = round(node_grace_s * patience() / 2)
        self._toleration_s = round(toleration_s * patience() / 2)
        self.ports = Ports.free()
        self.token = write_papers(folder, self.ports.api)
        self.kubeconfig = folder / "kubeconfig"
        self.audit_log = folder / "audit.log"
        self.api = Api(self.ports.api, self.token, folder / "ca.crt")
        self._running: dict[str, Child] = {}
        self.api_starts: list[tuple[float, float]] = []
        """When the API server was started, and when it was ready; Unix time, s."""
        self.without_rights: list[tuple[float, float]] = []
        """When rights were taken from the operator, and given back; Unix time, s."""

    @contextlib.contextmanager
    def rights_taken(self) -> Iterator[None]:
        """Do something in which the operator has to be refused what it may do otherwise."""
        begun = time.time()
        try:
            yield
        finally:
            self.without_rights.append((begun, time.time()))

    def start(self, prepare: Callable[[], None] = lambda: None) -> None:
        """Start everything, and wait until a pod could be made.

        Args:
            prepare: Done before the controllers start: of kinds that are new after that, the
                autoscaler hears half a minute later.

        Raises:
            ClusterError: a component ended, or it takes longer than START_SECONDS.
        """
        self.start_etcd()
        self.start_api_server()
        prepare()
        self._run("kube-controller-manager", *self._controllers())
        self._run("kube-scheduler", *self._scheduler())
        account = "/api/v1/namespaces/default/serviceaccounts/default"
        self.until("the default ServiceAccount", lambda: self.api.get(account).ok)

    def start_etcd(self) -> None:
        """Start etcd alone, with the data that is there."""
        self._run("etcd", *self._etcd())

    def start_api_server(self) -> None:
        """Start the API server alone, and wait until it is ready."""
        begun = time.time()
        self._run("kube-apiserver", *self._api_server())
        self.until("the API server", lambda: self.api.get("/readyz").ok)
        self.api_starts.append((begun, time.time()))

    def kill(self, name: str) -> None:
        """Kill one component."""
        self._running.pop(name).kill()

    def stop(self) -> None:
        """Kill everything, and remove its data."""
        for child in reversed(self._running.values()):
            child.kill()
        self._running.clear()
        shutil.rmtree(self.folder, ignore_errors=True)

    def until(self, what: str, happens: Callable[[], bool]) -> None:
        """Wait until something is so; raises ClusterError with the log of what ended."""
        limit = START_SECONDS * patience()
        deadline = time.monotonic() + limit
        while True:
            try:
                if happens():
                    return
            except OSError:
                pass  # nobody listens yet
            for child in self._running.values():
                if not child.alive:
                    raise ClusterError(f"{child.name} ended:\n{child.last_words()}")
            if time.monotonic() > deadline:
                last = next(reversed(self._running.values()))
                raise ClusterError(f"{what} took over {limit:.0f} s:\n{last.last_words()}")
            time.sleep(_POLL_SECONDS)

    def _run(self, name: str, *flags: str) -> None:
        argv = [str(tools_folder() / name), *flags]
        self._running[name] = Child(name, argv, self.folder)

    def _etcd(self) -> tuple[str, ...]:
        client = f"http://127.0.0.1:{self.ports.etcd}"
        peer = f"http://127.0.0.1:{self.ports.peer}"
        return (
            "--data-dir=etcd",
            f"--listen-client-urls={client}",
            f"--advertise-client-urls={client}",
            f"--listen-peer-urls={peer}",
            f"--initial-advertise-peer-urls={peer}",
            f"--initial-cluster=default={peer}",
            "--unsafe-no-fsync",
            "--log-level=warn",
        )

    def _api_server(self) -> tuple[str, ...]:
        return (
            f"--etcd-servers=http://127.0.0.1:{self.ports.etcd}",
            f"--secure-port={self.ports.api}",
            "--bind-address=127.0.0.1",
            "--tls-cert-file=server.crt",
            "--tls-private-key-file=server.key",
            # Published to pods only; Endpoints with a loopback address are refused.
            "--advertise-address=10.254.0.1",
            "--endpoint-reconciler-type=none",
            "--token-auth-file=tokens.csv",
            "--authorization-mode=Node,RBAC",
            f"--enable-admission-plugins={_CHECKED}",
            "--service-account-key-file=sa.pub",
            "--service-account-signing-key-file=sa.key",
            "--service-account-issuer=https://kubernetes.default.svc",
            "--service-cluster-ip-range=10.96.0.0/16",
            "--kubelet-preferred-address-types=InternalIP",
            f"--default-not-ready-toleration-seconds={self._toleration_s}",
            f"--default-unreachable-toleration-seconds={self._toleration_s}",
            _GATES,
            "--runtime-config=scheduling.k8s.io/v1beta1=true",
            "--audit-policy-file=audit.yaml",
            "--audit-log-path=audit.log",
            "--profiling=false",
        )

    def _controllers(self) -> tuple[str, ...]:
        return (
            "--kubeconfig=kubeconfig",
            f"--controllers={','.join(_CONTROLLERS)}",
            _GATES,
            "--service-account-private-key-file=sa.key",
            "--root-ca-file=ca.crt",
            "--use-service-account-credentials",
            "--leader-elect=false",
            "--cert-dir=controllers",
            f"--secure-port={self.ports.controllers}",
            "--bind-address=127.0.0.1",
            # Minutes in production; a node that is lost here is mostly lost within 4 s.
            f"--node-monitor-grace-period={self._node_grace_s}s",
            "--node-monitor-period=500ms",
            "--node-startup-grace-period=10s",
            # 15 s by default, which each test of an autoscaler would wait for.
            "--horizontal-pod-autoscaler-sync-period=1s",
            "--profiling=false",
        )

    def _scheduler(self) -> tuple[str, ...]:
        return (
            "--kubeconfig=kubeconfig",
            "--leader-elect=false",
            "--cert-dir=scheduler",
            f"--secure-port={self.ports.scheduler}",
            "--bind-address=127.0.0.1",
            _GATES,
            "--profiling=false",
        )
