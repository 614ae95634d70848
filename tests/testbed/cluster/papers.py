"""Files of a control plane: keys, certificates, tokens, kubeconfig, audit policy."""

from __future__ import annotations

import datetime as dt
import ipaddress
import json
import secrets
from pathlib import Path
from typing import Any, Final

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.x509.oid import NameOID

MOST_NODES: Final = 64
"""Node names that have a token: n1 to n64."""
_LIFETIME = dt.timedelta(days=30)
_NAMES = ("localhost", "kubernetes", "kubernetes.default", "kubernetes.default.svc")
PLANE_ADDRESS: Final = "10.254.0.1"
"""Of the API server in the network of real nodes; process nodes publish it, too."""
PROXY: Final = "proxy"
"""Whose token every node's kube-proxy has."""
_ADDRESSES = ("127.0.0.1", "10.96.0.1", PLANE_ADDRESS)

AUDIT_POLICY: Final[dict[str, Any]] = {
    "apiVersion": "audit.k8s.io/v1",
    "kind": "Policy",
    "omitStages": ["RequestReceived"],
    "rules": [
        {"level": "None", "userGroups": ["system:serviceaccounts:kube-system"]},
        {"level": "Metadata", "userGroups": ["system:serviceaccounts"]},
        {"level": "None"},
    ],
}
"""Accounts of pods only: what they used of their rights is read from the log."""


def write_papers(folder: Path, port: int) -> str:
    """Write everything that the components of one cluster share; return the admin's token.

    Args:
        folder: The cluster's directory.
        port: Of the API server on loopback.
    """
    _write_certificate(folder)
    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    _write_key(folder / "sa.key", key)
    (folder / "sa.pub").write_bytes(
        key.public_key().public_bytes(
            serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
        )
    )
    admin = secrets.token_hex(16)
    lines = [f"{admin},admin,admin,system:masters"]
    lines.append(f"{node_token(admin, PROXY)},system:kube-proxy,{PROXY}")
    for number in range(1, MOST_NODES + 1):
        name = f"n{number}"
        lines.append(f"{node_token(admin, name)},system:node:{name},{name},system:nodes")
    (folder / "tokens.csv").write_text("\n".join(lines) + "\n")
    (folder / "audit.yaml").write_text(json.dumps(AUDIT_POLICY))
    write_kubeconfig(folder / "kubeconfig", folder, port, admin)
    return admin


def node_token(admin: str, name: str) -> str:
    """Return the token of the kubelet of a node."""
    return f"{admin}-{name}"


def write_kubeconfig(
    file: Path, folder: Path, port: int, token: str, host: str = "127.0.0.1"
) -> None:
    """Write a kubeconfig for one token."""
    cluster = {"server": f"https://{host}:{port}", "certificate-authority": str(folder / "ca.crt")}
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "test", "cluster": cluster}],
        "users": [{"name": "user", "user": {"token": token}}],
        "contexts": [{"name": "test", "context": {"cluster": "test", "user": "user"}}],
        "current-context": "test",
    }
    file.write_text(json.dumps(config, indent=1))  # JSON is YAML
    file.chmod(0o600)


def _write_certificate(folder: Path) -> None:
    """Write ca.crt and what it signed: for servers, and for a client of kubelets."""
    now = dt.datetime.now(dt.UTC)
    authority = ec.generate_private_key(ec.SECP256R1())
    issuer = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "test-cluster-ca")])

    def begin(name: x509.Name, key: ec.EllipticCurvePrivateKey) -> x509.CertificateBuilder:
        return (
            x509.CertificateBuilder()
            .issuer_name(issuer)
            .subject_name(name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - dt.timedelta(hours=1))
            .not_valid_after(now + _LIFETIME)
        )

    def write(name: str, made: x509.CertificateBuilder) -> None:
        pem = made.sign(authority, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)
        (folder / name).write_bytes(pem)

    root = begin(issuer, authority).add_extension(
        x509.BasicConstraints(ca=True, path_length=0), True
    )
    root = root.add_extension(
        x509.SubjectKeyIdentifier.from_public_key(authority.public_key()), False
    )
    write("ca.crt", root)
    known = x509.AuthorityKeyIdentifier.from_issuer_public_key(authority.public_key())
    names: list[x509.GeneralName] = [x509.DNSName(name) for name in _NAMES]
    names += [x509.IPAddress(ipaddress.ip_address(address)) for address in _ADDRESSES]
    for name, group in (("server", "servers"), ("kubelet-client", "system:masters")):
        key = ec.generate_private_key(ec.SECP256R1())
        subject = [(NameOID.ORGANIZATION_NAME, group), (NameOID.COMMON_NAME, f"test-{name}")]
        leaf = begin(x509.Name([x509.NameAttribute(*one) for one in subject]), key)
        leaf = leaf.add_extension(known, False)
        if name == "server":
            leaf = leaf.add_extension(x509.SubjectAlternativeName(names), False)
        write(f"{name}.crt", leaf)
        _write_key(folder / f"{name}.key", key)


def _write_key(file: Path, key: rsa.RSAPrivateKey | ec.EllipticCurvePrivateKey) -> None:
    file.touch(mode=0o600)
    file.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.TraditionalOpenSSL,
            serialization.NoEncryption(),
        )
    )
