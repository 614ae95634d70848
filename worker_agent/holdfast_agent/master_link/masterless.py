"""Agent without a master: asks the peers of its world, and ends its workers if it must.

Does not belong here: the rule (`policies.masterless`); here are the clock, the calls and the order.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from holdfast_agent.master_link import peers
from holdfast_agent.master_link.session import MasterDial
from holdfast_agent.policies import masterless
from holdfast_agent.policies.master_messages import Accepted
from holdfast_agent.workers.runner import RoundRunner
from holdfast_wire.messages import GetRoundRequest, SetBarrier


class Solitude:
    """Watches the workers while there is no master."""

    def __init__(
        self,
        runner: RoundRunner,
        dial: MasterDial,
        node_rank: int,
        barrier: Callable[[SetBarrier, int], None],
    ) -> None:
        """`dial` has our identity for peers; `barrier` sets a barrier on the ranks of a round."""
        self._barrier = barrier
        self._runner = runner
        self._dial = dial
        self._node_rank = node_rank
        self._since = time.monotonic()

    def begin(self) -> None:
        """Note that the master is lost from now on."""
        self._since = time.monotonic()

    async def look(
        self, accepted: Accepted, limit_seconds: float, connected: Callable[[], bool]
    ) -> None:
        """Ask the peers once and decide; `connected` is asked again after the answers."""
        current = self._runner.current
        members = current.assignment.peers if current is not None else ()
        request = GetRoundRequest(node_rank=self._node_rank, fence=accepted.fence())
        answers = await peers.ask(members, request, self._dial.job_uid, self._dial.tls_dir)
        if connected():
            return
        verdict = masterless.judge(
            silent_seconds=time.monotonic() - self._since,
            limit_seconds=limit_seconds,
            epoch=accepted.epoch,
            own_round=accepted.round,
            answers=answers,
        )
        if verdict.kill:
            self._runner.kill(verdict.reason)
        elif (
            verdict.barrier is not None
            and current is not None
            and verdict.barrier.barrier_id > current.armed
        ):
            self._barrier(verdict.barrier, accepted.round)
