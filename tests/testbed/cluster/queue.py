"""The real Kueue beside a test cluster's control plane, as a process of this machine.

The API server cannot reach pods here, so webhooks are URLs on loopback. Kueue insists on files in
/etc/kueue: it has a mount namespace of its own.
"""

from __future__ import annotations

import base64
import contextlib
import dataclasses
import datetime as dt
import functools
import ipaddress
import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import yaml
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from cluster.children import Child
from cluster.control_plane import ControlPlane, free_port
from cluster.kubectl import Kubectl, watch_events

_SCRIPT: Final = Path(__file__).resolve().parents[3] / "scripts" / "cluster_tools.sh"
_KINDS: Final = frozenset({"workload", "clusterqueue", "resourceflavor", "cohort", "localqueue"})
"""Kinds whose webhooks are installed: Kueue's own."""
WORKLOAD_API: Final = "kueue.x-k8s.io/v1beta2"
WORKLOADS: Final = "workloads.kueue.x-k8s.io"
"""The scheduler of Kubernetes has a kind Workload, too."""
_NAMESPACE: Final = "kueue-system"
_CERTS: Final = "/etc/kueue/metrics/certs"
_MOUNTED: Final = (
    f"mkdir -p /etc/kueue && mount -t tmpfs none /etc/kueue && mkdir -p {_CERTS} && "
    f'cp "$1"/tls.crt "$1"/tls.key {_CERTS} && shift && exec "$@"'
)


@functools.cache
def kueue_folder() -> Path | None:
    """Return the folder with kueue, its CRDs and its webhooks; None: they are not built here."""
    command = [str(_SCRIPT), "--queue", "--no-build"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return Path(done.stdout.strip()) if done.returncode == 0 else None


NOT_BUILT: Final = "kueue is not built here; run scripts/cluster_tools.sh --queue"


class Kueue:
    """A running Kueue, which a test can take away for a while."""

    def __init__(self, plane: ControlPlane, folder: Path, tools: Path) -> None:
        """Start it; `folder` takes its files, `tools` is `kueue_folder`."""
        self._plane, self._folder = plane, folder
        self._tools, self._port = tools, free_port()
        self._kubectl = Kubectl(plane.kubeconfig)
        crds = str(self._tools / "crds")
        self._kubectl.run("apply", "--server-side", "-f", crds)
        self._kubectl.run("wait", "--for=condition=Established", "--timeout=60s", "-f", crds)
        authority = _write_certificate(folder)
        config = folder / "kueue.yaml"
        config.write_text(yaml.safe_dump(_config(self._port, folder)))
        self._kubectl.try_run("create", "namespace", _NAMESPACE)
        self.start()
        for body in _webhooks(self._tools / "webhooks.yaml", self._port, authority):
            self._kubectl.run("apply", "-f", "-", stdin=body)

    def start(self) -> None:
        """Start its process, and wait until its webhooks answer."""
        words = ("sh", "-c", _MOUNTED, "kueue", str(self._folder), str(self._tools / "kueue"))
        command = ("unshare", "-m", "--propagation", "private", *words)
        environ = {"KUBECONFIG": str(self._plane.kubeconfig), "POD_NAMESPACE": _NAMESPACE}
        config = f"--config={self._folder / 'kueue.yaml'}"
        self._running = Child("kueue", (*command, config), self._folder, environ)
        answers = self._answers
        self._plane.until("Kueue's webhooks", lambda: answers() or not self._running.alive)
        assert self._running.alive, self._running.last_words()

    def kill(self) -> None:
        """Kill its process; its webhooks refuse every Workload then."""
        self._running.kill()

    def stop(self) -> None:
        """End it, and let nothing ask its webhooks any more."""
        self._running.kill()
        for kind in ("mutating", "validating"):
            name = f"{kind}-webhook-configuration"
            self._kubectl.try_run("delete", f"{kind}webhookconfiguration", name)

    def _answers(self) -> bool:
        with socket.socket() as one:
            return one.connect_ex(("127.0.0.1", self._port)) == 0


@contextlib.contextmanager
def kueue(plane: ControlPlane, folder: Path, tools: Path) -> Iterator[Kueue]:
    """Run Kueue for a cluster."""
    running = Kueue(plane, folder, tools)
    try:
        yield running
    finally:
        running.stop()


def queue(kubectl: Kubectl, cpus: str, name: str = "team", **flavor: Any) -> None:
    """Make a ClusterQueue and a LocalQueue of its name in the namespace.

    Args:
        kubectl: Of the namespace.
        cpus: Its quota; of memory it has enough.
        name: Of the queues, and of their only flavor.
        flavor: The flavor's spec.
    """
    quota = {"cpu": cpus, "memory": "1Ti"}
    resources = [{"name": kind, "nominalQuota": much} for kind, much in quota.items()]
    group = {
        "coveredResources": list(quota),
        "flavors": [{"name": name, "resources": resources}],
    }
    spec = {
        "namespaceSelector": {},
        "preemption": {"withinClusterQueue": "LowerPriority"},
        "resourceGroups": [group],
    }
    for kind, body in (
        ("ResourceFlavor", flavor),
        ("ClusterQueue", spec),
        ("LocalQueue", {"clusterQueue": name}),
    ):
        object_ = {
            "apiVersion": WORKLOAD_API,
            "kind": kind,
            "metadata": {"name": name},
            "spec": body,
        }
        kubectl.run("apply", "-f", "-", stdin=object_)


def millis(cpus: object) -> int:
    """Return thousandths of a CPU, of a quantity of CPUs."""
    text = str(cpus)
    return int(text[:-1]) if text.endswith("m") else round(1000 * float(text))


def reserved(kubectl: Kubectl, name: str = "team") -> int:
    """Return the CPUs that Kueue counts as reserved in a ClusterQueue, in thousandths."""
    status = kubectl.json("get", "clusterqueue", name).get("status", {})
    return sum(
        millis(one["total"])
        for flavor in status.get("flavorsReservation", ())
        for one in flavor["resources"]
        if one["name"] == "cpu"
    )


@dataclasses.dataclass(slots=True)
class _Usage:
    """Thousandths of CPUs by job at one moment of a namespace."""

    pods: dict[str, tuple[str, int]] = dataclasses.field(default_factory=dict)
    """By name of a pod: its job, and its requests."""
    workloads: dict[str, tuple[str, int]] = dataclasses.field(default_factory=dict)

    def take(self, kind: str, body: dict[str, Any]) -> None:
        """Apply an event."""
        of = self.pods if body["kind"] == "Pod" else self.workloads
        name, used = body["metadata"]["name"], 0
        if kind != "DELETED":
            used = _requests(body) if body["kind"] == "Pod" else _reservation(body)
        of[name] = (body["metadata"].get("labels", {}).get("holdfast.dev/job", ""), used)

    def faults(self, quota: int) -> Iterator[str]:
        """Yield what must never be."""
        for what, of in (("pods", self.pods), ("reservations", self.workloads)):
            total = sum(used for _, used in of.values())
            if total > quota:
                yield f"{what} of {total}m in a quota of {quota}m: {of}"
        for job in {job for job, _ in self.pods.values()} - {""}:
            pods, held = (
                sum(used for owner, used in of.values() if owner == job)
                for of in (self.pods, self.workloads)
            )
            if pods > held:
                yield f"pods of {job} use {pods}m, and {held}m are reserved"


class QuotaWitness:
    """Follows the pods and Workloads of a namespace; knows what was used at each revision."""

    def __init__(self, kubectl: Kubectl) -> None:
        """Begin at once."""
        flags = ("--watch", "-o", "json", "--output-watch-events")
        self._watches = [kubectl.start("get", kind, *flags) for kind in ("pods", WORKLOADS)]
        self._seen: list[tuple[int, float, str, dict[str, Any]]] = []
        self._threads = [
            threading.Thread(target=self._follow, args=(one,)) for one in self._watches
        ]
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """See no more."""
        for watch, thread in zip(self._watches, self._threads, strict=True):
            watch.terminate()
            watch.wait(10)
            thread.join(10)

    def faults(self, quota: int) -> list[str]:
        """Return what was too much, at whatever revision; `quota`: thousandths of CPUs.

        The API server's store numbers the changes of all kinds in one order.
        """
        usage, found = _Usage(), list[str]()
        for version, _, kind, body in sorted(self._seen, key=_order):
            usage.take(kind, body)
            what = f"{kind} {body['kind']} {body['metadata']['name']}"
            found += [f"{version} {what}: {one}" for one in usage.faults(quota)]
        return found

    def story(self, since: float) -> Iterator[tuple[float, str]]:
        """Yield seconds after `since` (monotonic), and what changed then, for people."""
        states: dict[str, str] = {}
        for _, at, kind, body in sorted(self._seen, key=_order):
            name = f"{body['kind']} {body['metadata']['name']}"
            state = "gone" if kind == "DELETED" else _state(body)
            if state != states.get(name) and at >= since:
                yield at - since, f"{name}: {state}"
            states[name] = state

    def _follow(self, watch: subprocess.Popen[str]) -> None:
        assert watch.stdout is not None
        with watch.stdout as output:
            for kind, body in watch_events(output):
                version = int(body["metadata"]["resourceVersion"])
                self._seen.append((version, time.monotonic(), kind, body))


def _order(seen: tuple[int, float, str, dict[str, Any]]) -> int:
    return seen[0]


def _state(body: dict[str, Any]) -> str:
    """Return where a pod or a Workload stands, in a word or two."""
    if body["kind"] == "Pod":
        leaving = "leaves" if "deletionTimestamp" in body["metadata"] else ""
        return leaving or str(body.get("status", {}).get("phase"))
    conditions = body.get("status", {}).get("conditions", ())
    named = [one["type"] for one in conditions if one["status"] == "True"]
    return " ".join(sorted(named)) or "waits"


def _requests(pod: dict[str, Any]) -> int:
    """Return the thousandths of CPUs that a pod holds until all of it has ended."""
    if pod.get("status", {}).get("phase") in {"Succeeded", "Failed"}:
        return 0
    asked = [one.get("resources", {}).get("requests", {}) for one in pod["spec"]["containers"]]
    return sum(millis(one.get("cpu", 0)) for one in asked)


def _reservation(workload: dict[str, Any]) -> int:
    admission = workload.get("status", {}).get("admission") or {}
    assigned = admission.get("podSetAssignments", ())
    return sum(millis(one.get("resourceUsage", {}).get("cpu", 0)) for one in assigned)


def _config(port: int, folder: Path) -> dict[str, Any]:
    return {
        "apiVersion": "config.kueue.x-k8s.io/v1beta2",
        "kind": "Configuration",
        "webhook": {"port": port, "host": "127.0.0.1", "certDir": str(folder)},
        "health": {"healthProbeBindAddress": f"127.0.0.1:{free_port()}"},
        "metrics": {"bindAddress": f"127.0.0.1:{free_port()}"},
        "leaderElection": {"leaderElect": False},
        "internalCertManagement": {"enable": False},
        "featureGates": {"VisibilityOnDemand": False, "PartialAdmission": True},
        "integrations": {
            "frameworks": ["batch/job"],
            "externalFrameworks": ["ElasticJob.v1alpha1.holdfast.dev"],
        },
    }


def _webhooks(file: Path, port: int, authority: str) -> Iterator[dict[str, Any]]:
    """Yield Kueue's configurations of its own kinds, with URLs in place of its Service."""
    for body in yaml.safe_load_all(file.read_text()):
        kept = []
        for hook in body["webhooks"]:
            path = hook["clientConfig"]["service"]["path"]
            if path.rpartition("-")[2] in _KINDS:
                url = f"https://127.0.0.1:{port}{path}"
                kept.append({**hook, "clientConfig": {"url": url, "caBundle": authority}})
        yield {**body, "webhooks": kept}


def _write_certificate(folder: Path) -> str:
    """Write tls.crt and tls.key for loopback; return the authority in base64."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "kueue")])
    now = dt.datetime.now(dt.UTC)
    address = x509.IPAddress(ipaddress.ip_address("127.0.0.1"))
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - dt.timedelta(hours=1))
        .not_valid_after(now + dt.timedelta(days=30))
        .add_extension(x509.SubjectAlternativeName([address]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
        .public_bytes(serialization.Encoding.PEM)
    )
    folder.mkdir(exist_ok=True)
    (folder / "tls.crt").write_bytes(made)
    (folder / "tls.key").write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
    )
    return base64.b64encode(made).decode()
