"""Workers of a local job on other hosts, through a launcher such as srun or ssh.

The runner starts, ends and replaces workers here, too: the process that it watches is the launcher,
which lives and ends with the worker. Hosts share a file system with the job's directory, where each
worker finds its environment and its certificate, and reach this host over TCP.
"""

from __future__ import annotations

import dataclasses
import math
import shlex
import socket
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Final

from holdfast_cli.errors import BadInputError

HOST: Final = "{host}"
"""Place of the host's name in a launcher."""
EXAMPLES: Final = "'srun --overlap --nodes=1 --ntasks=1 --nodelist={host}', or 'ssh -tt {host}'"


@dataclasses.dataclass(frozen=True, slots=True)
class Hosts:
    """Hosts of a job's workers, and the command that starts a program there."""

    names: tuple[str, ...]
    launcher: tuple[str, ...]
    """Words in front of the program's; one has `{host}`."""
    address: str = ""
    """Address of this machine, as those hosts reach it."""

    def choose(
        self, taken: Iterable[str], avoided: Collection[str], failed: Mapping[str, float]
    ) -> str:
        """Return the host for one more worker: the one with the fewest, in the order given.

        taken: Host of each worker that lives.
        avoided: Hosts that the master excludes; they are used only where there is no other.
        failed: Time at which a worker last failed on a host; of hosts with equally many workers the
            one that failed longest ago is taken.
        """
        free = [name for name in self.names if name not in avoided] or self.names
        counts = Counter(taken)
        return min(free, key=lambda name: (counts[name], failed.get(name, -math.inf)))

    def command(self, host: str, argv: Sequence[str]) -> tuple[str, ...]:
        """Return the command that starts a program on a host."""
        return (*(word.replace(HOST, host) for word in self.launcher), *argv)


def read_hosts(names: str, launcher: str, address: str) -> Hosts:
    """Return the hosts of `--hosts`, reached by `--launcher`, that reach this one at `--address`.

    Raises:
        BadInputError: One is missing, or says nothing that can be used.
    """
    found = tuple(name.strip() for name in names.split(",") if name.strip())
    if not found:
        raise BadInputError(f"--hosts {names!r}: names no host; give names with commas between")
    twice = sorted(name for name, count in Counter(found).items() if count > 1)
    if twice:
        raise BadInputError(f"--hosts {names!r}: {twice[0]} stands there twice; remove one")
    if not launcher:
        raise BadInputError(f"--hosts needs --launcher, for example {EXAMPLES}")
    try:
        words = tuple(shlex.split(launcher))
    except ValueError as error:
        raise BadInputError(f"--launcher {launcher!r}: {error}; close the quotes") from error
    if not any(HOST in word for word in words):
        raise BadInputError(f"--launcher {launcher!r}: has no {HOST}; for example {EXAMPLES}")
    return Hosts(found, words, address or _own_address())


def _own_address() -> str:
    """Return the address of this machine's name, as other hosts look it up.

    Raises:
        BadInputError: The name has no address, or only one that other hosts cannot reach.
    """
    name = socket.gethostname()
    try:
        address = socket.gethostbyname(name)
    except OSError as error:
        why = f"this machine's name {name} has no address ({error})"
        raise BadInputError(f"--hosts: {why}; give --address") from error
    if address.startswith("127."):
        why = f"this machine's name {name} is {address}, which other hosts cannot reach"
        raise BadInputError(f"--hosts: {why}; give --address")
    return address
