"""`holdfast-master`: one job master, until its job has ended.

Exit codes: 0 the job has ended, or SIGTERM or SIGINT came (agents train on); 1 an error of ours;
2 the configuration, the port or the journal cannot be used; 3 a newer master exists.
"""

from __future__ import annotations

import argparse
import asyncio
import faulthandler
import logging
import os
import sys
from pathlib import Path
from typing import TextIO

from holdfast_master.journal.segments import EpochRefusedError, JournalError
from holdfast_master.process import os_process
from holdfast_master.process import settings as configuration
from holdfast_master.process.settings import ConfigError, MasterConfig
from holdfast_master.process.storage import Storage, open_storage
from holdfast_wire import __version__, json_log

log = logging.getLogger(__name__)

EXIT_FAILED = 1
EXIT_USAGE = 2
EXIT_ZOMBIE = 3


def main(arguments: list[str] | None = None) -> int:
    """Run a master; returns the exit code."""
    parser = argparse.ArgumentParser(
        prog="holdfast-master", description="The job master of one Holdfast job."
    )
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument("--config", type=Path, help="JSON file; see the reference")
    source.add_argument("--in-pod", action="store_true", help="read the operator's variables")
    parser.add_argument("--version", action="version", version=__version__)
    options = parser.parse_args(arguments)
    os_process.end_at_signals()
    try:
        config = (
            configuration.load_in_pod(os.environ)
            if options.in_pod
            else configuration.load(options.config)
        )
    except ConfigError as error:
        sys.stderr.write(f"holdfast-master: {error}\n")
        return EXIT_USAGE
    if config.die_with_parent and not os_process.die_with_parent(config.parent_pid):
        return 0
    os_process.spread_large_blocks()
    os_process.choose_poller(os.environ)
    try:
        _start_log(config.log_level.value, config.log_file, sys.stderr)
    except OSError as error:
        sys.stderr.write(
            f"holdfast-master: log_file is {config.log_file}, which cannot be opened "
            f"({error.strerror}); name a writable file\n"
        )
        return EXIT_USAGE
    faulthandler.enable()
    return _run(config)


def _run(config: MasterConfig) -> int:
    # Only now: gRPC reads its settings from the environment when it is loaded.
    from holdfast_master.process.serving import ProcessEnd, ServeError, serve  # noqa: PLC0415
    from holdfast_wire.channel import CredentialsError  # noqa: PLC0415

    codes = {
        ProcessEnd.FINISHED: 0,
        ProcessEnd.STOPPED: 0,
        ProcessEnd.STEPPED_DOWN: EXIT_ZOMBIE,
        ProcessEnd.FAILED: EXIT_FAILED,
    }
    os_process.collect_rarely()
    try:
        ending = asyncio.run(serve(config, _open_storage(config)))
    except EpochRefusedError as error:
        log.critical("%s", error)
        return EXIT_ZOMBIE
    except (JournalError, CredentialsError, ServeError) as error:
        log.critical("%s", error)
        return EXIT_USAGE
    return codes[ending]


def _open_storage(config: MasterConfig) -> Storage:
    storage = open_storage(config)
    for note in storage.history.notes:
        log.warning("journal: %s", note)
    if storage.journal is not None and storage.journal.trouble:
        log.error("%s; going on without it, trying again", storage.journal.trouble)
    return storage


def _start_log(level: str, file: Path | None, stream: TextIO) -> None:
    """Send this process's log to `file`, made 0600, or else to `stream`.

    Raises:
        OSError: the file cannot be opened.
    """
    if file is not None:
        descriptor = os.open(file, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
        stream = os.fdopen(descriptor, "a", encoding="utf-8")
    json_log.start(level, stream)
    # Its debug lines are about every call.
    logging.getLogger("grpc").setLevel(logging.INFO)


if __name__ == "__main__":
    sys.exit(main())
