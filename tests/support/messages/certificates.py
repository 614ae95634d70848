"""Certificates of a job for tests."""

from __future__ import annotations

import datetime as dt
from pathlib import Path

from holdfast_wire.authority import JobAuthority
from holdfast_wire.identity import Identity

ROOT_KEY = bytes(range(32))
DAY = dt.timedelta(days=1)


def now() -> dt.datetime:
    """Return the time that certificates are made at."""
    return dt.datetime.now(dt.UTC)


def issue(directory: Path, identity: Identity, *, root_key: bytes = ROOT_KEY) -> Path:
    """Write a day's key pair of `identity` below `directory` and return where it lies."""
    authority = JobAuthority(root_key, identity.job_uid, now())
    return _write(directory, identity, authority, now())


def issue_expired(directory: Path, identity: Identity) -> Path:
    """Write a key pair whose certificate expired yesterday."""
    then = now() - 2 * DAY
    return _write(directory, identity, JobAuthority(ROOT_KEY, identity.job_uid, then), then)


def _write(directory: Path, identity: Identity, authority: JobAuthority, at: dt.datetime) -> Path:
    index = "" if identity.index is None else f"-{identity.index}"
    target = directory / f"{identity.job_uid}-{identity.role}{index}"
    authority.issue(identity, at, DAY, ["127.0.0.1"]).write(target)
    return target
