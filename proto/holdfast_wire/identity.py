"""Identity of a peer: the content of a job's certificate, and its spelling.

Pure: names only. `authority` makes certificates, `channel` presents and reads them.
"""

from __future__ import annotations

import dataclasses
from urllib.parse import quote, unquote

from holdfast_wire import keys

SCHEME = "holdfast://"


class IdentityError(ValueError):
    """A certificate's name is not one of ours."""


@dataclasses.dataclass(frozen=True, slots=True)
class Identity:
    """Job uid, role and, for an agent, the node rank that the certificate was made for."""

    job_uid: str
    role: str
    index: int | None = None

    def uri(self) -> str:
        """The subject alternative name, for example `holdfast://6f1e/agent/3`."""
        tail = "" if self.index is None else f"/{self.index}"
        return f"{SCHEME}{quote(self.job_uid, safe='')}/{self.role}{tail}"

    def describe(self) -> str:
        """The identity's text for logs and events."""
        return self.role if self.index is None else f"{self.role} {self.index}"


def parse(uri: str) -> Identity:
    """The identity in a certificate's name, such as `holdfast://6f1e/agent/3`.

    Raises:
        IdentityError: `uri` is no name that `Identity.uri` makes.
    """
    parts = uri.removeprefix(SCHEME).split("/")
    if not uri.startswith(SCHEME) or len(parts) not in (2, 3) or not parts[0]:
        raise IdentityError(f"{uri!r} is no holdfast identity (holdfast://<job uid>/<role>)")
    if parts[1] not in keys.ROLES:
        raise IdentityError(f"{uri!r} has the unknown role {parts[1]!r}; known: {keys.ROLES}")
    index = None
    if len(parts) == 3:
        if not (parts[2].isascii() and parts[2].isdigit()):
            raise IdentityError(f"{uri!r} has the index {parts[2]!r}, which is no node rank")
        index = int(parts[2])
    return Identity(unquote(parts[0]), parts[1], index)


def master_host(job_uid: str) -> str:
    """The DNS name in a master's certificate, such as `master.6f1e.holdfast`; no resolver knows it.

    Clients check it instead of an address.
    """
    return f"{keys.ROLE_MASTER}.{job_uid.lower()}.holdfast"


def agent_host(job_uid: str) -> str:
    """The DNS name in every agent's certificate of a job, for PeerService."""
    return f"{keys.ROLE_AGENT}.{job_uid.lower()}.holdfast"
