"""Certificates of one job, made by the holder of the key: operator, runner, standalone agent.

The CA key is derived from a root key and the job's uid, so nothing has to be stored for each job.
It reads no clock: the caller passes the time. It writes the files itself, because their modes
matter.
"""

from __future__ import annotations

import dataclasses
import datetime as dt
import ipaddress
import os
from collections.abc import Iterable
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from holdfast_wire import keys
from holdfast_wire.identity import Identity, agent_host, master_host

_P256_ORDER = 0xFFFFFFFF00000000FFFFFFFFFFFFFFFFBCE6FAADA7179E84F3B9CAC2FC632551
_BACKDATE = dt.timedelta(minutes=5)
"""Certificates begin this much earlier, for nodes with a late clock."""
ROOT_KEY_BYTES = 32


@dataclasses.dataclass(frozen=True, slots=True, repr=False)
class Credentials:
    """PEM bytes of one identity. Has no repr, so that a key cannot reach a log."""

    ca: bytes
    certificate: bytes
    key: bytes

    def write(self, directory: Path) -> None:
        """Write the three files, 0600, each at once; the directory becomes 0700.

        Raises:
            OSError: a file could not be written.
        """
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        directory.chmod(0o700)
        files = ((keys.CA_FILE, self.ca), (keys.CERT_FILE, self.certificate))
        for name, data in (*files, (keys.KEY_FILE, self.key)):
            _write_private(directory / name, data)


class JobAuthority:
    """The certificate authority of one job."""

    def __init__(self, root_key: bytes, job_uid: str, not_before: dt.datetime) -> None:
        """Derive the job's CA: the same root key and uid give the same one.

        The root key never leaves its owner. The CA's certificate is valid from five minutes before
        `not_before`, for 10 years.

        Raises:
            ValueError: the root key is shorter than 32 bytes.
        """
        if len(root_key) < ROOT_KEY_BYTES:
            raise ValueError(f"root key has {len(root_key)} bytes, needs {ROOT_KEY_BYTES}")
        self._job_uid = job_uid
        self._key = _derive_key(root_key, job_uid)
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, f"holdfast job {job_uid}")])
        self._ca = self._self_signed(not_before - _BACKDATE)

    @property
    def ca_pem(self) -> bytes:
        """PEM of the CA certificate, which every peer of the job trusts."""
        return self._ca.public_bytes(serialization.Encoding.PEM)

    def issue(
        self,
        identity: Identity,
        now: dt.datetime,
        lifetime: dt.timedelta,
        addresses: Iterable[str] = (),
    ) -> Credentials:
        """A new key pair with its certificate, valid from five minutes before `now`.

        addresses: IP addresses and DNS names beside those of the role.

        Raises:
            ValueError: the identity belongs to another job.
        """
        if identity.job_uid != self._job_uid:
            raise ValueError(f"identity of job {identity.job_uid}, authority of {self._job_uid}")
        key = ec.generate_private_key(ec.SECP256R1())
        names = _alternative_names(identity, addresses)
        builder = self._builder(key.public_key(), now - _BACKDATE, now + lifetime)
        certificate = (
            builder.subject_name(
                x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, identity.describe())])
            )
            .add_extension(x509.SubjectAlternativeName(names), critical=False)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(
                x509.ExtendedKeyUsage(
                    [ExtendedKeyUsageOID.CLIENT_AUTH, ExtendedKeyUsageOID.SERVER_AUTH]
                ),
                critical=False,
            )
            .sign(self._key, hashes.SHA256())
        )
        return Credentials(
            ca=self.ca_pem,
            certificate=certificate.public_bytes(serialization.Encoding.PEM),
            key=key.private_bytes(
                serialization.Encoding.PEM,
                serialization.PrivateFormat.PKCS8,
                serialization.NoEncryption(),
            ),
        )

    def _builder(
        self, public_key: ec.EllipticCurvePublicKey, begin: dt.datetime, end: dt.datetime
    ) -> x509.CertificateBuilder:
        return (
            x509.CertificateBuilder()
            .issuer_name(self._name)
            .public_key(public_key)
            .serial_number(x509.random_serial_number())
            .not_valid_before(begin)
            .not_valid_after(end)
        )

    def _self_signed(self, begin: dt.datetime) -> x509.Certificate:
        end = begin + dt.timedelta(days=3650)
        return (
            self._builder(self._key.public_key(), begin, end)
            .subject_name(self._name)
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .sign(self._key, hashes.SHA256())
        )


def new_root_key() -> bytes:
    """A fresh root key: 32 bytes of the kernel's randomness."""
    return os.urandom(ROOT_KEY_BYTES)


def _derive_key(root_key: bytes, job_uid: str) -> ec.EllipticCurvePrivateKey:
    # 48 bytes modulo the order leave a bias below 2**-128 (FIPS 186-5, A.2.1).
    material = HKDF(hashes.SHA256(), 48, b"holdfast job ca v1", job_uid.encode()).derive(root_key)
    scalar = int.from_bytes(material, "big") % (_P256_ORDER - 1) + 1
    return ec.derive_private_key(scalar, ec.SECP256R1())


def _alternative_names(identity: Identity, addresses: Iterable[str]) -> list[x509.GeneralName]:
    names: list[x509.GeneralName] = [x509.UniformResourceIdentifier(identity.uri())]
    hosts = {keys.ROLE_MASTER: master_host, keys.ROLE_AGENT: agent_host}
    if identity.role in hosts:
        names.append(x509.DNSName(hosts[identity.role](identity.job_uid)))
    for address in addresses:
        try:
            names.append(x509.IPAddress(ipaddress.ip_address(address)))
        except ValueError:
            names.append(x509.DNSName(address))
    return names


def _write_private(path: Path, data: bytes) -> None:
    # A new file under another name, then rename: a reader never sees half a key, and the mode is
    # right from the first byte on.
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    # In a container every process has the same pid: a crash may have left this file behind.
    temporary.unlink(missing_ok=True)
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(data)
    temporary.replace(path)
