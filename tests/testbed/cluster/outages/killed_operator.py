"""`python -m cluster.outages.killed_operator`: the operator, killed at drawn points of its work.

Runs as the operator's container. KILLS is `SEED:COUNT`: so many times it forks an operator and has
it SIGKILL itself just before or just after its n-th write to the API server (the Lease does not
count), or kills it after a while; then it lets one live. Forked, because an interpreter's start
takes ten times as long as what is to be interrupted.
"""

from __future__ import annotations

import dataclasses
import os
import random
import signal
import sys
import time
from typing import Any, Final

from holdfast_operator import main
from holdfast_operator.kube.client import JSON, KubeClient

_POLL_SECONDS: Final = 0.01
_FEW: Final = 8
_MANY: Final = 60


@dataclasses.dataclass(frozen=True, slots=True)
class Kill:
    """The moment of one operator's end."""

    write: int
    """Before or after its n-th write, from 1."""
    after: bool
    seconds: float
    """At the latest."""


def draw(seed: int, number: int) -> Kill:
    """The kill of this number: every second one follows closely on the one before."""
    chance = random.Random(f"{seed}:{number}")
    most = _FEW if number % 2 else _MANY
    return Kill(chance.randint(1, most), chance.random() < 0.5, chance.uniform(0.3, 3.0))


def _die(why: str) -> None:
    sys.stdout.write(f"killed {why}\n")
    sys.stdout.flush()
    os.kill(os.getpid(), signal.SIGKILL)


def _barrier(kill: Kill) -> None:
    """Have this process kill itself at the drawn write."""
    original = KubeClient.call
    written = 0

    async def call(
        self: KubeClient,
        method: str,
        path: str,
        body: Any = None,
        content_type: str = JSON,
        **options: bool,
    ) -> Any:
        nonlocal written
        counts = method != "GET" and "/leases" not in path
        written += counts
        fatal = counts and written == kill.write
        if fatal and not kill.after:
            _die(f"before {method} {path}")
        try:
            return await original(self, method, path, body, content_type, **options)
        finally:
            if fatal:
                _die(f"after {method} {path}")

    KubeClient.call = call  # type: ignore[method-assign]


def _run(kill: Kill | None) -> int:
    """Fork an operator; return its process id."""
    child = os.fork()
    if child == 0:
        if kill is not None:
            _barrier(kill)
        os._exit(main.main())
    return child


def _wait(child: int, kill: Kill) -> None:
    deadline = time.monotonic() + kill.seconds
    while os.waitpid(child, os.WNOHANG) == (0, 0):
        if time.monotonic() > deadline:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            sys.stdout.write(f"killed after {kill.seconds:.2f} s\n")
            return
        time.sleep(_POLL_SECONDS)


def run() -> int:
    """Kill as often as KILLS says, then let one operator live until a signal."""
    seed, count = map(int, os.environ["KILLS"].split(":"))
    for number in range(count):
        kill = draw(seed, number)
        sys.stdout.write(f"kill {number + 1} of {count}: {kill}\n")
        sys.stdout.flush()
        _wait(_run(kill), kill)
    sys.stdout.write("no more kills\n")
    sys.stdout.flush()
    child = _run(None)
    signal.signal(signal.SIGTERM, lambda *_: os.kill(child, signal.SIGTERM))
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


if __name__ == "__main__":
    sys.exit(run())
