"""TCP probes of a job's pods: finds nodes whose kernels answer nothing, while one is in doubt.

Transport only: `reachability` chooses the pods and judges the answers. The probes need no
right, no certificate and no word from the API server. The kernel of a living node refuses or
accepts a connection, whatever runs in the pod; a dead node does not answer.
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

from holdfast_operator.nodes.reachability import NodeReachability, asked, can_answer
from holdfast_operator.plan.pods import Role
from holdfast_operator.pods.record import PodRecord

_log = logging.getLogger(__name__)
ANSWER_SECONDS: Final = 1.5
"""Deadline of an answer: TCP sends a second packet after 1 s."""
LATE_SECONDS: Final = 0.5
"""Delay of a timer that proves only that this process stood still."""
AGAIN_SECONDS: Final = 1.0
"""Time between two rounds of probes."""
LEARN_SECONDS: Final = 30.0
"""Time between two looks for pods that were never probed."""
FREE_PORT: Final = 1
"""A port without a listener (tcpmux, RFC 1078), so that no queue can be full. The master's own port
is probed as well: network policies allow it."""
_MOST_AT_ONCE: Final = 256
_NOBODY_THERE: Final = frozenset(
    {errno.EHOSTUNREACH, errno.EHOSTDOWN, errno.ETIMEDOUT, errno.ECONNABORTED}
)
"""Errors for an address without a host. Other errors are this side's own."""
PROBE_ERRORS: Final = prometheus.Counter(
    "holdfast_operator_node_probe_errors_total", "Faults of this program while it probed nodes."
)


class NodeProbe:
    """Probes of one job: once to each pod while all is well, then to nodes in doubt."""

    def __init__(
        self,
        name: str,
        port: int,
        own_node: str,
        pods: Callable[[], Iterable[PodRecord]],
        suspects: Callable[[], Iterable[str]],
        found: Callable[[NodeReachability], None],
    ) -> None:
        """Prepare; nothing is probed yet.

        Args:
            name: Name of the job, for the log.
            port: Port to probe beside FREE_PORT; it needs no listener.
            own_node: Node of this process; empty: not known.
            pods: Returns the job's present pods.
            suspects: Returns the nodes that are in doubt now.
            found: Called with the result when a node has fallen silent or answers again.
        """
        self._name = name
        self._ports = (port, FREE_PORT)
        self._pods = pods
        self._suspects = suspects
        self._found = found
        self._reach = NodeReachability(own_node=own_node)
        self._hurry = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    @property
    def reach(self) -> NodeReachability:
        """Reachability of the job's nodes, as known now."""
        return self._reach

    def start(self) -> None:
        """Start to probe the pods."""
        if self._task is None:
            self._task = asyncio.create_task(self._run(), name=f"node-probe {self._name}")

    def met(self, uid: str) -> None:
        """Note an open stream to this pod: that is an answer."""
        self._reach = self._reach.met(uid)

    def probe_now(self) -> None:
        """Probe at once: a node may be gone, or a pod is new."""
        self._hurry.set()

    def changed(self, pod: PodRecord, *, gone: bool) -> None:
        """Probe at once, unless a worker that has answered is only ready, or not ready, again."""
        calm = pod.uid in self._reach.answered and not self._reach.unreachable
        if gone or not calm or pod.slot.role is Role.MASTER:
            self.probe_now()

    async def close(self) -> None:
        """Stop probing."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _run(self) -> None:
        while True:
            doubted = self._reach.unreachable | frozenset(self._suspects())
            self._hurry.clear()
            try:
                pods = asked(self._pods(), doubted) if doubted else self._unanswered()
                asking = (answers_at(one.address, self._ports) for one in pods)
                answers = dict(zip(pods, await asyncio.gather(*asking), strict=True))
                self._tell(self._reach.hear(answers, doubted))
            except Exception:  # noqa: BLE001 - the top: the slower verdict stands without it
                PROBE_ERRORS.inc()
                _log.exception("the nodes of job %s could not be asked", self._name)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(AGAIN_SECONDS if doubted else LEARN_SECONDS):
                    await self._hurry.wait()

    def _unanswered(self) -> tuple[PodRecord, ...]:
        """Return pods that never answered; forget those that are gone.

        The stream shows a master; a silent connection would only appear in its log.
        """
        pods = list(self._pods())
        known = self._reach.answered & {one.uid for one in pods}
        self._reach = NodeReachability(own_node=self._reach.own_node, answered=known)
        others = (one for one in pods if can_answer(one) and one.slot.role is not Role.MASTER)
        new = (one for one in others if one.uid not in known)
        return tuple(itertools.islice(new, _MOST_AT_ONCE))

    def _tell(self, reach: NodeReachability) -> None:
        before, self._reach = self._reach.unreachable, reach
        if reach.unreachable == before:
            return
        for node in sorted(reach.unreachable - before):
            _log.warning("job %s: no pod on %s answers, and others do", self._name, node)
        for node in sorted(before - reach.unreachable):
            _log.info("job %s: %s answers again, or has no pod of it", self._name, node)
        self._found(reach)


async def answers_at(address: str, ports: Sequence[int]) -> bool | None:
    """Return True if the kernel behind an address answers, be it with a refusal.

    Returns:
        None: the probe was not possible, or this process stood still meanwhile.
    """
    answers = await asyncio.gather(*(_answers(address, port) for port in ports))
    if any(answers):
        return True
    return None if None in answers else False


async def _answers(address: str, port: int) -> bool | None:
    began = time.monotonic()
    try:
        async with asyncio.timeout(ANSWER_SECONDS):
            _, writer = await asyncio.open_connection(address, port)
    except ConnectionRefusedError:
        return True
    except TimeoutError:
        return None if time.monotonic() - began > ANSWER_SECONDS + LATE_SECONDS else False
    except OSError as error:
        return False if error.errno in _NOBODY_THERE else None
    writer.close()
    with contextlib.suppress(OSError):
        await writer.wait_closed()
    return True
