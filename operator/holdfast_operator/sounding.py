"""Asks the kernels of a job's nodes whether they are there, while one of them is in doubt.

Transport only: whom to ask and what the answers mean is `plan.reach`'s. It takes no right, no
certificate and no word from the API server: an attempt to connect to a pod is refused or accepted
by a node that lives, whatever runs in the pod, and stays without an answer where none does.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import itertools
import logging
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Final

import prometheus_client as prometheus

from holdfast_operator.plan.reach import Place, Reach, asked, can_answer

_log = logging.getLogger(__name__)
ANSWER_S: Final = 1.5
"""How long an answer may take: TCP asks a second time after 1 s."""
LATE_S: Final = 0.5
"""A timer that comes later than this shows that this process stood still, and nothing else."""
AGAIN_S: Final = 1.0
"""Between two rounds of questions."""
LEARN_S: Final = 30.0
"""Between two looks for pods that were never asked."""
FREE_PORT: Final = 1
"""Nobody listens there (tcpmux, RFC 1078), so that no queue can be full; the master's own port is
asked as well, which is what a policy allows."""
_MOST_AT_ONCE: Final = 256
_NOBODY_THERE: Final = frozenset(
    {errno.EHOSTUNREACH, errno.EHOSTDOWN, errno.ETIMEDOUT, errno.ECONNABORTED}
)
"""What the way says of an address that nobody has. Other errors are this side's own."""
SOUNDING_ERRORS: Final = prometheus.Counter(
    "holdfast_operator_sounding_errors_total", "Faults of this program while it asked for nodes."
)


class Sounding:
    """One job's questions: once to each pod while all is well, then to nodes in doubt."""

    def __init__(
        self,
        name: str,
        port: int,
        own_node: str,
        places: Callable[[], Iterable[Place]],
        suspects: Callable[[], Iterable[str]],
        found: Callable[[Reach], None],
    ) -> None:
        """Be ready to ask; nothing is asked yet.

        Args:
            name: Of the job, for the log.
            port: Of the connections beside FREE_PORT; nobody has to listen there.
            own_node: Where this process runs; empty: not known.
            places: Its pods as they are now.
            suspects: Nodes that are in doubt now.
            found: Called with what is known, when a node has fallen silent or answers again.
        """
        self._name = name
        self._ports = (port, FREE_PORT)
        self._places = places
        self._suspects = suspects
        self._found = found
        self._reach = Reach(own_node=own_node)
        self._hurry = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    @property
    def reach(self) -> Reach:
        """What is known now."""
        return self._reach

    def begin(self) -> None:
        """Get to know the pods, from now on."""
        if self._task is None:
            self._task = asyncio.create_task(self._run(), name=f"sounding {self._name}")

    def met(self, uid: str) -> None:
        """A stream to this pod is open: that is an answer."""
        self._reach = self._reach.met(uid)

    def look(self) -> None:
        """A node may be gone, or a pod is new: ask at once."""
        self._hurry.set()

    async def close(self) -> None:
        """Ask no more."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _run(self) -> None:
        while True:
            doubted = self._reach.unreachable | frozenset(self._suspects())
            self._hurry.clear()
            try:
                places = asked(self._places(), doubted) if doubted else self._strangers()
                answers = await asyncio.gather(*(self._ask(one) for one in places))
                answered = dict(zip(places, answers, strict=True))
                self._tell(self._reach.hear(answered, doubted))
            except Exception:  # noqa: BLE001 - the top: the slower verdict stands without it
                SOUNDING_ERRORS.inc()
                _log.exception("the nodes of job %s could not be asked", self._name)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(AGAIN_S if doubted else LEARN_S):
                    await self._hurry.wait()

    def _strangers(self) -> tuple[Place, ...]:
        """Pods that never answered; of those that are gone nothing is kept."""
        places = list(self._places())
        known = self._reach.answered & {place.uid for place in places}
        self._reach = Reach(own_node=self._reach.own_node, answered=known)
        workers = (one for one in places if can_answer(one) and not one.is_master)
        new = (one for one in workers if one.uid not in known)
        return tuple(itertools.islice(new, _MOST_AT_ONCE))

    async def _ask(self, place: Place) -> bool | None:
        return await answers_at(place.address, self._ports)

    def _tell(self, reach: Reach) -> None:
        before, self._reach = self._reach.unreachable, reach
        if reach.unreachable == before:
            return
        for node in sorted(reach.unreachable - before):
            _log.warning("job %s: no pod on %s answers, and others do", self._name, node)
        for node in sorted(before - reach.unreachable):
            _log.info("job %s: %s answers again, or has no pod of it", self._name, node)
        self._found(reach)


async def answers_at(address: str, ports: Sequence[int]) -> bool | None:
    """Whether the kernel behind an address answers at all, be it with a refusal.

    Returns:
        None where the question could not be put, or this process stood still meanwhile.
    """
    answers = await asyncio.gather(*(_answers(address, port) for port in ports))
    if any(answers):
        return True
    return None if None in answers else False


async def _answers(address: str, port: int) -> bool | None:
    began = time.monotonic()
    try:
        async with asyncio.timeout(ANSWER_S):
            _, writer = await asyncio.open_connection(address, port)
    except ConnectionRefusedError:
        return True
    except TimeoutError:
        return None if time.monotonic() - began > ANSWER_S + LATE_S else False
    except OSError as error:
        return False if error.errno in _NOBODY_THERE else None
    writer.close()
    with contextlib.suppress(OSError):
        await writer.wait_closed()
    return True
