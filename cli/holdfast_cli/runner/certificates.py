"""Certificates of a local job: the runner holds the CA's key, in memory only."""

from __future__ import annotations

import datetime as dt

from holdfast_cli.job_directory import JobHome
from holdfast_wire import keys, loopback
from holdfast_wire.authority import JobAuthority, new_root_key
from holdfast_wire.identity import Identity

_LIFETIME = dt.timedelta(days=30)
"""Longer than a local job runs: certificates of a laptop's job are not renewed."""


class LocalIdentities:
    """Writes each process's certificate into the job's directory, readable by its owner only."""

    def __init__(self, home: JobHome, job_uid: str, address: str) -> None:
        """Make the authority; `address`: of the master, as agents reach it."""
        self._home = home
        self._job_uid = job_uid
        self._address = address
        self._authority = JobAuthority(new_root_key(), job_uid, _now())

    def write_fixed(self) -> None:
        """Write the certificates of the master, the operator (this runner) and the user."""
        addresses = {keys.ROLE_MASTER: (self._address, loopback.address(), "localhost")}
        for role in (keys.ROLE_MASTER, keys.ROLE_OPERATOR, keys.ROLE_USER):
            self._write(Identity(self._job_uid, role), role, addresses.get(role, ()))

    def write_agent(self, index: int) -> str:
        """Write the certificate of node `index`; return its directory."""
        who = f"worker-{index}"
        self._write(Identity(self._job_uid, keys.ROLE_AGENT, index), who, ())
        return str(self._home.tls(who))

    def _write(self, identity: Identity, who: str, addresses: tuple[str, ...]) -> None:
        credentials = self._authority.issue(identity, _now(), _LIFETIME, addresses)
        credentials.write(self._home.tls(who))


def _now() -> dt.datetime:
    return dt.datetime.now(dt.UTC)
