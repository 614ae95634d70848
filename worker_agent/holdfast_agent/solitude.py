"""An agent without a master: asks members of its world, and ends its workers when it must.

The rule is `decide.masterless`; here are the clock, the questions and the order.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from holdfast_agent import peers
from holdfast_agent.decide import masterless
from holdfast_agent.decide.fence import Accepted
from holdfast_agent.runner import RoundRunner
from holdfast_agent.session import Dial
from holdfast_wire.messages import Arm, GetRoundRequest


class Solitude:
    """Looks after the workers while there is no master."""

    def __init__(
        self, runner: RoundRunner, dial: Dial, node_rank: int, arm: Callable[[Arm, int], None]
    ) -> None:
        """`dial` says who we are to peers; `arm` asks the ranks of a round to stop at a step."""
        self._arm = arm
        self._runner = runner
        self._dial = dial
        self._node_rank = node_rank
        self._since = time.monotonic()

    def begin(self) -> None:
        """The master is lost from now on."""
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
        elif verdict.arm is not None and current is not None and verdict.arm.arm_id > current.armed:
            self._arm(verdict.arm, accepted.round)
