"""The real Kueue beside a test cluster's control plane, as a process of this machine.

The API server cannot reach pods here, so webhooks are URLs on loopback. Kueue insists on files in
/etc/kueue: it has a mount namespace of its own.
"""

from __future__ import annotations

import base64
import contextlib
import datetime as dt
import ipaddress
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import yaml
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from cluster.children import Child
from cluster.control_plane import ControlPlane
from cluster.kubectl import Kubectl

_SCRIPT: Final = Path(__file__).resolve().parents[3] / "scripts" / "cluster_tools.sh"
_KINDS: Final = frozenset({"workload", "clusterqueue", "resourceflavor", "cohort", "localqueue"})
"""Kinds whose webhooks are installed: Kueue's own."""
_CERTS: Final = "/etc/kueue/metrics/certs"
_MOUNTED: Final = (
    f"mkdir -p /etc/kueue && mount -t tmpfs none /etc/kueue && mkdir -p {_CERTS} && "
    f'cp "$1"/tls.crt "$1"/tls.key {_CERTS} && shift && exec "$@"'
)


def kueue_folder() -> Path:
    """Return the folder with kueue, its CRDs and its webhooks, built where they are missing."""
    command = [str(_SCRIPT), "--queue"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return Path(done.stdout.strip())


@contextlib.contextmanager
def kueue(plane: ControlPlane, folder: Path) -> Iterator[Child]:
    """Run Kueue for a cluster; `folder` takes its files."""
    tools, port = kueue_folder(), _free_port()
    kubectl = Kubectl(plane.kubeconfig)
    kubectl.run("apply", "--server-side", "-f", str(tools / "crds"))
    authority = _write_certificate(folder)
    config = folder / "kueue.yaml"
    config.write_text(yaml.safe_dump(_config(port, folder)))
    words = ("sh", "-c", _MOUNTED, "kueue", str(folder), str(tools / "kueue"), f"--config={config}")
    environ = {"KUBECONFIG": str(plane.kubeconfig), "POD_NAMESPACE": "kueue-system"}
    kubectl.try_run("create", "namespace", "kueue-system")
    running = Child("kueue", ("unshare", "-m", "--propagation", "private", *words), folder, environ)
    try:
        plane.until("Kueue's webhooks", lambda: _listens(port) or not running.alive)
        assert running.alive, running.last_words()
        for body in _webhooks(tools / "webhooks.yaml", port, authority):
            kubectl.run("apply", "-f", "-", stdin=body)
        yield running
    finally:
        running.kill()
        for kind in ("mutating", "validating"):
            name = f"{kind}-webhook-configuration"
            kubectl.try_run("delete", f"{kind}webhookconfiguration", name)


def queue(kubectl: Kubectl, cpus: int, name: str = "team") -> None:
    """Make a ClusterQueue with a quota of CPUs, and a LocalQueue of its name in the namespace."""
    spec = {
        "namespaceSelector": {},
        "preemption": {"withinClusterQueue": "LowerPriority"},
        "resourceGroups": [
            {
                "coveredResources": ["cpu"],
                "flavors": [{"name": name, "resources": [{"name": "cpu", "nominalQuota": cpus}]}],
            }
        ],
    }
    for kind, body in (
        ("ResourceFlavor", {}),
        ("ClusterQueue", {"spec": spec}),
        ("LocalQueue", {"spec": {"clusterQueue": name}}),
    ):
        metadata = {"name": name}
        object_ = {"apiVersion": "kueue.x-k8s.io/v1beta2", "kind": kind, "metadata": metadata}
        kubectl.run("apply", "-f", "-", stdin={**object_, **body})


def _config(port: int, folder: Path) -> dict[str, Any]:
    return {
        "apiVersion": "config.kueue.x-k8s.io/v1beta2",
        "kind": "Configuration",
        "webhook": {"port": port, "host": "127.0.0.1", "certDir": str(folder)},
        "health": {"healthProbeBindAddress": f"127.0.0.1:{_free_port()}"},
        "metrics": {"bindAddress": f"127.0.0.1:{_free_port()}"},
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


def _free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


def _listens(port: int) -> bool:
    with socket.socket() as one:
        return one.connect_ex(("127.0.0.1", port)) == 0
