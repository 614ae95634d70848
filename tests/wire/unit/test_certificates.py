"""Certificates of a job: who they name, whom they convince, who may read the files."""

from __future__ import annotations

import datetime as dt
import os
import stat
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec
from hypothesis import given
from hypothesis import strategies as st

from holdfast_wire import authority, channel, keys
from holdfast_wire.authority import JobAuthority, new_root_key
from holdfast_wire.channel import CredentialsError
from holdfast_wire.identity import Identity, IdentityError, parse
from messages.certificates import DAY, ROOT_KEY, now

AGENT = Identity("job-1", "agent", 3)
UIDS = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=40)


def ca_key(ca_pem: bytes) -> bytes:
    """Return a CA certificate's public key."""
    certificate = x509.load_pem_x509_certificate(ca_pem)
    return certificate.public_key().public_bytes(
        serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo
    )


def test_the_same_root_key_and_job_give_the_same_authority() -> None:
    """An operator that starts anew trusts what it signed before; nothing is stored for a job."""
    first = JobAuthority(ROOT_KEY, "job-1", now())
    again = JobAuthority(ROOT_KEY, "job-1", now() + DAY)
    assert ca_key(first.ca_pem) == ca_key(again.ca_pem)
    issued = x509.load_pem_x509_certificate(first.issue(AGENT, now(), DAY).certificate)
    issued.verify_directly_issued_by(x509.load_pem_x509_certificate(again.ca_pem))


def test_the_derived_key_never_changes_between_releases() -> None:
    """A release that derived another key would lock every running job out."""
    key = authority._derive_key(ROOT_KEY, "job-1").private_numbers().private_value
    assert hex(key).startswith("0x51a53b149de8512e")


@pytest.mark.parametrize(
    ("root_key", "job_uid"),
    [(bytes(32), "job-1"), (ROOT_KEY, "job-2"), (ROOT_KEY, "job-1 ")],
    ids=["root key", "job", "a space"],
)
def test_another_root_key_or_job_gives_another_authority(root_key: bytes, job_uid: str) -> None:
    """No job's certificates are worth anything at another job."""
    ours = JobAuthority(ROOT_KEY, "job-1", now())
    theirs = JobAuthority(root_key, job_uid, now())
    assert ca_key(ours.ca_pem) != ca_key(theirs.ca_pem)


def test_a_certificate_names_job_role_and_rank() -> None:
    """And nothing that would let it sign others."""
    issued = JobAuthority(ROOT_KEY, "job-1", now()).issue(AGENT, now(), DAY, ["10.0.0.7", "host"])
    certificate = x509.load_pem_x509_certificate(issued.certificate)
    names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    uris = names.get_values_for_type(x509.UniformResourceIdentifier)
    assert uris == ["holdfast://job-1/agent/3"]
    assert parse(uris[0]) == AGENT
    assert names.get_values_for_type(x509.DNSName) == ["agent.job-1.holdfast", "host"]
    assert [str(ip) for ip in names.get_values_for_type(x509.IPAddress)] == ["10.0.0.7"]
    constraints = certificate.extensions.get_extension_for_class(x509.BasicConstraints).value
    assert not constraints.ca


def test_a_certificate_is_valid_from_a_little_earlier_to_its_end() -> None:
    """A node whose clock is five minutes behind can still use it."""
    at = dt.datetime(2030, 1, 1, tzinfo=dt.UTC)
    issued = JobAuthority(ROOT_KEY, "job-1", at).issue(AGENT, at, dt.timedelta(hours=2))
    certificate = x509.load_pem_x509_certificate(issued.certificate)
    assert certificate.not_valid_before_utc == at - dt.timedelta(minutes=5)
    assert certificate.not_valid_after_utc == at + dt.timedelta(hours=2)


def test_every_certificate_has_a_key_of_its_own() -> None:
    """Two agents never share one."""
    maker = JobAuthority(ROOT_KEY, "job-1", now())
    assert maker.issue(AGENT, now(), DAY).key != maker.issue(AGENT, now(), DAY).key


def test_an_authority_issues_for_its_own_job_only() -> None:
    """A mix-up is an error, not a certificate."""
    with pytest.raises(ValueError, match="identity of job other, authority of job-1"):
        JobAuthority(ROOT_KEY, "job-1", now()).issue(Identity("other", "user"), now(), DAY)


def test_a_short_root_key_is_refused() -> None:
    """Sixteen bytes are not what `new_root_key` makes."""
    with pytest.raises(ValueError, match="root key has 16 bytes, needs 32"):
        JobAuthority(bytes(16), "job-1", now())
    assert len(new_root_key()) == 32
    assert new_root_key() != new_root_key()


def test_files_are_private_whatever_the_umask_and_the_directory_were(tmp_path: Path) -> None:
    """0600 in 0700, also where the directory was open before, also when written anew."""
    directory = tmp_path / "tls"
    directory.mkdir(mode=0o777)
    maker = JobAuthority(ROOT_KEY, "job-1", now())
    for _ in range(2):
        issued = maker.issue(AGENT, now(), DAY)
        issued.write(directory)
        assert stat.S_IMODE(directory.stat().st_mode) == 0o700
        names = {path.name for path in directory.iterdir()}
        assert names == {keys.CA_FILE, keys.CERT_FILE, keys.KEY_FILE}
        for path in directory.iterdir():
            assert stat.S_IMODE(path.stat().st_mode) == 0o600
        assert (directory / keys.KEY_FILE).read_bytes() == issued.key


def test_a_half_written_file_of_a_crash_is_no_obstacle(tmp_path: Path) -> None:
    """In a container the next process has the same number, and so the same temporary name."""
    (tmp_path / f".{keys.KEY_FILE}.{os.getpid()}").write_text("half")
    issued = JobAuthority(ROOT_KEY, "job-1", now()).issue(AGENT, now(), DAY)
    issued.write(tmp_path)
    assert (tmp_path / keys.KEY_FILE).read_bytes() == issued.key


def test_keys_do_not_reach_a_log() -> None:
    """Printing credentials shows no key."""
    issued = JobAuthority(ROOT_KEY, "job-1", now()).issue(AGENT, now(), DAY)
    secret = issued.key.decode().splitlines()[1]
    assert secret not in repr(issued)
    assert secret not in str(issued)
    key = serialization.load_pem_private_key(issued.key, None)
    assert isinstance(key, ec.EllipticCurvePrivateKey)


def test_missing_files_are_named_with_the_remedy(tmp_path: Path) -> None:
    """Directory, file and variable."""
    with pytest.raises(CredentialsError, match="HOLDFAST_TLS_DIR must name a directory with"):
        channel.channel_credentials(tmp_path / "absent")
    (tmp_path / keys.CA_FILE).touch()
    with pytest.raises(CredentialsError, match=keys.CERT_FILE):
        channel.server_credentials(tmp_path)


@given(UIDS, st.sampled_from(keys.ROLES), st.none() | st.integers(0, 10**6))
def test_an_identity_is_read_back_from_its_name(uid: str, role: str, index: int | None) -> None:
    """Also where the uid holds slashes, colons or letters of any script."""
    identity = Identity(uid, role, index)
    assert identity.uri().isascii()
    assert parse(identity.uri()) == identity


@pytest.mark.parametrize(
    "uri",
    [
        "",
        "holdfast://",
        "https://job/agent/1",
        "holdfast:///agent/1",
        "holdfast://job",
        "holdfast://job/root",
        "holdfast://job/agent/1/2",
        "holdfast://job/agent/-1",
        "holdfast://job/agent/x",
        "holdfast://job/agent/²",
        "spiffe://holdfast://job/agent/1",
    ],
)
def test_a_name_that_is_not_ours_is_refused(uri: str) -> None:
    """No part is guessed."""
    with pytest.raises(IdentityError):
        parse(uri)


def test_a_peer_without_a_name_of_ours_is_nobody() -> None:
    """DNS names and foreign URIs say nothing; the first name of ours counts."""
    field = "x509_subject_alternative_name"
    assert channel.peer_identity({}) is None
    assert channel.peer_identity({field: [b"agent.job.holdfast", b"\xff", b"https://x"]}) is None
    assert channel.peer_identity({field: [b"x", AGENT.uri().encode()]}) == AGENT
