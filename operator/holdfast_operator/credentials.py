"""Certificates of jobs: from the operator's root key to the Secrets that pods mount.

The CA key of a job is derived from the root key and the job's uid. So the only secrets stored for a
job are the key pairs themselves.
"""

from __future__ import annotations

import base64
import datetime as dt
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from holdfast_operator.pods.names import KEYS_PER_SECRET, Owner
from holdfast_wire import keys
from holdfast_wire.authority import Credentials, JobAuthority
from holdfast_wire.identity import Identity

LABEL_RANKS: Final = "holdfast.dev/ranks"
"""Label on a Secret of workers: number of ranks, from its first on, with a key pair in it."""
RENEW_AFTER: Final = "holdfast.dev/renew-after"
"""Annotation on every Secret of a job: time to renew its certificates (RFC 3339)."""
_RENEWAL: Final = 2 / 3
"""Part of a lifetime after which certificates are renewed: the rest covers an operator's
absence."""


class JobCredentials:
    """Certificates issued for one job."""

    def __init__(self, root_key: bytes, owner: Owner, lifetime: dt.timedelta) -> None:
        self._owner = owner
        self._lifetime = lifetime
        self._authority = JobAuthority(root_key, owner.uid, _now())
        self._folder: tempfile.TemporaryDirectory[str] | None = None
        self._renew_at = _now()

    def operator_folder(self) -> Path:
        """Return a directory with the operator's own certificate for this job; blocks shortly."""
        if self._folder is None:
            self._folder = tempfile.TemporaryDirectory(prefix="holdfast-tls-")
        folder = Path(self._folder.name)
        if _now() >= self._renew_at:
            renewal = self._renewal()
            self._issue(Identity(self._owner.uid, keys.ROLE_OPERATOR)).write(folder)
            self._renew_at = renewal  # only now: after a full disk it is tried again
        return folder

    def close(self) -> None:
        """Remove the operator's own certificate."""
        if self._folder is not None:
            self._folder.cleanup()
            self._folder = None

    def master_secret(self) -> dict[str, Any]:
        """Return the Secret of the master; like the others it takes milliseconds of a core."""
        owner = self._owner
        names = (owner.master_service, owner.master_host, f"{owner.master_host}.cluster.local")
        issued = self._issue(Identity(owner.uid, keys.ROLE_MASTER), names)
        return self._secret(owner.master_secret, _files(issued))

    def user_secret(self) -> dict[str, Any]:
        """Return the Secret of people."""
        issued = self._issue(Identity(self._owner.uid, keys.ROLE_USER))
        return self._secret(self._owner.user_secret, _files(issued))

    def worker_secret(self, rank: int, most: int) -> dict[str, Any]:
        """Return the Secret with a rank's key pair and its neighbours'; `most`: the job's ranks."""
        first = rank // KEYS_PER_SECRET * KEYS_PER_SECRET
        end = min(first + KEYS_PER_SECRET, max(most, rank + 1))
        files = {keys.CA_FILE: self._authority.ca_pem}
        for one in range(first, end):
            issued = self._issue(Identity(self._owner.uid, keys.ROLE_AGENT, one))
            files[f"worker-{one}.{keys.CERT_FILE}"] = issued.certificate
            files[f"worker-{one}.{keys.KEY_FILE}"] = issued.key
        secret = self._secret(self._owner.worker_secret(rank), files)
        secret["metadata"]["labels"][LABEL_RANKS] = str(end - first)
        return secret

    def _issue(self, identity: Identity, names: tuple[str, ...] = ()) -> Credentials:
        return self._authority.issue(identity, _now(), self._lifetime, names)

    def _renewal(self) -> dt.datetime:
        return _now() + self._lifetime * _RENEWAL

    def _secret(self, name: str, files: dict[str, bytes]) -> dict[str, Any]:
        metadata = self._owner.metadata(name)
        metadata["annotations"] = {RENEW_AFTER: self._renewal().isoformat(timespec="seconds")}
        return {
            "apiVersion": "v1",
            "kind": "Secret",
            "metadata": metadata,
            "type": "holdfast.dev/tls",
            "data": {file: base64.b64encode(data).decode() for file, data in files.items()},
        }


def is_whole(secret: Mapping[str, Any]) -> bool:
    """Return True if a Secret of a job has all its files; people edit Secrets."""
    files = set(secret.get("data") or {})
    metadata = secret["metadata"]
    ranks = (metadata.get("labels") or {}).get(LABEL_RANKS)
    if ranks is None:
        return {keys.CA_FILE, keys.CERT_FILE, keys.KEY_FILE} <= files
    first = int(metadata["name"].rpartition("-")[2]) * KEYS_PER_SECRET
    count = int(ranks) if ranks.isdecimal() else KEYS_PER_SECRET
    wanted = (
        f"worker-{rank}.{name}"
        for rank in range(first, first + count)
        for name in (keys.CERT_FILE, keys.KEY_FILE)
    )
    return keys.CA_FILE in files and files.issuperset(wanted)


def _files(credentials: Credentials) -> dict[str, bytes]:
    return {
        keys.CA_FILE: credentials.ca,
        keys.CERT_FILE: credentials.certificate,
        keys.KEY_FILE: credentials.key,
    }


def _now() -> dt.datetime:
    return dt.datetime.now(dt.UTC)
