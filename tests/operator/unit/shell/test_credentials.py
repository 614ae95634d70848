"""The operator's own certificate for a job."""

from __future__ import annotations

import datetime as dt
from pathlib import Path

import pytest

from holdfast_operator.credentials import JobCredentials
from holdfast_operator.pods.names import Owner
from holdfast_wire import keys
from holdfast_wire.authority import Credentials


def test_files_that_could_not_be_written_are_written_by_the_next_stream(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A disk that was full for a moment must not keep the operator from the master for days."""
    owner = Owner(name="t", namespace="team", uid="u-1")
    credentials = JobCredentials(bytes(32), owner, dt.timedelta(days=90))

    def full(_credentials: Credentials, _directory: Path) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as disk:
        disk.setattr(Credentials, "write", full)
        with pytest.raises(OSError, match="No space"):
            credentials.operator_folder()
    assert (credentials.operator_folder() / keys.CERT_FILE).exists()
    credentials.close()
