"""Asks the kernels of a job's nodes whether they are there, while one of them is in doubt.

Transport only: whom to ask and what the answers mean is `plan.reach`'s. It takes no right, no
certificate and no word from the API server: an attempt to connect to a pod is refused or accepted
by a node that lives, whatever runs in the pod, and stays without an answer where none does.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Iterable
from typing import Final

import prometheus_client as prometheus

from holdfast_operator.plan.reach import Place, asked, unreachable

_log = logging.getLogger(__name__)
ANSWER_S: Final = 1.5
"""How long an answer may take: TCP asks a second time after 1 s."""
AGAIN_S: Final = 1.0
"""Between two rounds of questions."""
SOUNDING_ERRORS: Final = prometheus.Counter(
    "holdfast_operator_sounding_errors_total", "Faults of this program while it asked for nodes."
)


class Sounding:
    """One job's questions, from `begin` until its nodes are beyond doubt."""

    def __init__(
        self,
        name: str,
        port: int,
        places: Callable[[], Iterable[Place]],
        suspects: Callable[[], Iterable[str]],
        found: Callable[[frozenset[str]], None],
    ) -> None:
        """Be ready to ask; nothing is asked yet.

        Args:
            name: Of the job, for the log.
            port: Of the connections; nobody has to listen there.
            places: Its pods as they are now.
            suspects: Nodes that are in doubt now; it ends when there are none.
            found: Called with the nodes that answer nothing, when those have changed.
        """
        self._name = name
        self._port = port
        self._places = places
        self._suspects = suspects
        self._found = found
        self._silent: frozenset[str] = frozenset()
        self._task: asyncio.Task[None] | None = None

    def begin(self) -> None:
        """Ask from now on, unless it does."""
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._run(), name=f"sounding {self._name}")

    async def close(self) -> None:
        """Ask no more."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _run(self) -> None:
        while doubted := self._silent | frozenset(self._suspects()):
            try:
                self._tell(await self._ask(doubted))
            except Exception:  # noqa: BLE001 - the top: the slower verdict stands without it
                SOUNDING_ERRORS.inc()
                _log.exception("the nodes of job %s could not be asked", self._name)
            await asyncio.sleep(AGAIN_S)

    async def _ask(self, doubted: Iterable[str]) -> frozenset[str]:
        places = asked(self._places(), doubted)
        answers = await asyncio.gather(*(answers_at(one.address, self._port) for one in places))
        return unreachable(dict(zip(places, answers, strict=True)))

    def _tell(self, silent: frozenset[str]) -> None:
        if silent == self._silent:
            return
        for node in sorted(silent - self._silent):
            _log.warning("job %s: no pod on %s answers, and others do", self._name, node)
        for node in sorted(self._silent - silent):
            _log.info("job %s: %s answers again, or has no pod of it", self._name, node)
        self._silent = silent
        self._found(silent)


async def answers_at(address: str, port: int) -> bool:
    """Whether the kernel behind an address answers at all, be it with a refusal."""
    try:
        async with asyncio.timeout(ANSWER_S):
            _, writer = await asyncio.open_connection(address, port)
    except ConnectionRefusedError:
        return True
    except OSError:  # TimeoutError is one, and so is a router's word that there is nobody
        return False
    writer.close()
    with contextlib.suppress(OSError):
        await writer.wait_closed()
    return True
