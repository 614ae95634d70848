"""The job's master as a process: its epoch, its configuration, its start and its end."""

from __future__ import annotations

import asyncio
import os
import secrets
import sys

from holdfast_cli.errors import MasterUnreachableError
from holdfast_cli.job_directory import Endpoint, JobHome, JobRecord, write_json
from holdfast_cli.runner import processes
from holdfast_wire import keys, loopback

_START_SECONDS = 30.0
"""Deadline of a start, s: import of grpc and first handshake on a busy laptop; usually < 1 s."""
_LINGER_SECONDS = 3600.0
"""Time for which a master serves after the job, s; the runner ends it earlier, after the
summary."""


class MasterProcess:
    """One job's master. `start` again makes a successor with the next epoch."""

    def __init__(self, home: JobHome, record: JobRecord) -> None:
        self._home = home
        self._record = record
        self._running: processes.Running | None = None
        self._port = 0
        """Port of every successor: agents and users look for the master there."""

    @property
    def running(self) -> processes.Running:
        """Process of the master."""
        if self._running is None:
            raise MasterUnreachableError(f"the master of {self._record.name} was not started")
        return self._running

    async def start(self) -> Endpoint:
        """Start a master with a new epoch; return its endpoint.

        Raises:
            MasterUnreachableError: It ended or did not serve in time; the text names its log.
        """
        epoch = self._next_epoch()
        config = self._write_config(epoch)
        self._home.endpoint_file.unlink(missing_ok=True)
        log = self._home.logs / "master.log"
        self._running = await processes.start(
            processes.Command(
                argv=[sys.executable, "-m", "holdfast_master.main", "--config", config],
                env=dict(os.environ),
                cwd=self._home.path,
                log=log,
            )
        )
        await processes.wait_until(self._settled, _START_SECONDS)
        endpoint = self._home.endpoint()
        if endpoint is None:
            await self._running.end(0)
            text = await asyncio.to_thread(log.read_text, errors="replace")
            raise MasterUnreachableError(
                f"the master did not start to serve; the end of {log}:\n{text[-2000:].rstrip()}"
            )
        self._port = endpoint.port
        return endpoint

    def _settled(self) -> bool:
        return self._home.endpoint() is not None or self.running.exit_code is not None

    def _next_epoch(self) -> int:
        # No other process starts masters of this job, so a file is enough.
        file = self._home.path / "epoch"
        epoch = int(file.read_text()) + 1 if file.exists() else 1
        write_json(file, epoch)
        return epoch

    def _write_config(self, epoch: int) -> str:
        file = self._home.path / f"master-{epoch}.json"
        config = {
            "job_name": self._record.name,
            "job_uid": self._record.uid,
            "epoch": epoch,
            "incarnation": secrets.token_hex(8),
            "tls_dir": str(self._home.tls(keys.ROLE_MASTER)),
            "bind_host": loopback.bracketed(loopback.address()),
            "port": self._port,
            "endpoint_file": str(self._home.endpoint_file),
            "journal_dir": str(self._home.journal),
            "exit_when_finished": _LINGER_SECONDS,
            "die_with_parent": True,
            "parent_pid": os.getpid(),
        }
        write_json(file, config)
        return str(file)
