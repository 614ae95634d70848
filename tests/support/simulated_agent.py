"""A simulated agent and what can happen to it."""

from __future__ import annotations

from holdfast_wire.messages import Goodbye, RoundStopped, WorkerExited
from simulated_process import AgentProcess


class SimulatedAgent(AgentProcess):
    """An agent that can be hurt; the faults by what they are called on a real machine."""

    def crash_worker(
        self, exit_code: int = -9, error_type: str = "", *, final: bool = False
    ) -> None:
        """A training process dies."""
        if not self._able() or not self.round or self.finished or self.assignment is None:
            return
        now, number = self.job.time.now, self.round
        step = self.job.training.step(number, now)
        fence = self._fence(number)
        exited = WorkerExited(
            rank=self.assignment.base_rank,
            exit_code=exit_code,
            error_type=error_type,
            step=step,
            matched_patterns=self.matched,
            final=final,
            age_seconds=(delay := self.job.draw(0.001, 0.03)),
        )
        self.crashed = True
        self.job.training.leave(number, self.rank, self.agent_id, now)
        self.job.peers_raise(number, self.rank)
        self.job.time.after(delay, lambda: self._tell(exited, fence))
        if final:
            self.job.time.after(delay + 0.01, lambda: self.crash(exit_code, told=False))

    def crash(self, exit_code: int = -9, *, told: bool = True) -> None:
        """The agent process dies with all it started."""
        if not self.alive or self.left:
            return
        self._kill()
        self.alive = False
        if self.session is not None:
            self.job.cut_stream(self.session)
        if told:
            self.job.pod_ended(self, exit_code)

    def freeze(self) -> None:
        """SIGSTOP of the agent: its lease runs out."""
        if self._able():
            self.frozen = True
            number = self.round
            self.job.time.after(4.0, lambda: self._lease_over(number))

    def _lease_over(self, number: int) -> None:
        if self.frozen and self.alive and number and self.round == number:
            self._kill()
            self._send(RoundStopped(lease_expired=True), self._fence(number))

    def thaw(self) -> None:
        """SIGCONT: what was queued arrives now."""
        if not self.frozen or not self.alive:
            return
        self.frozen = False
        queued, self.inbox = self.inbox, []
        for response in queued:
            if self.session is not None:
                self.receive(self.session, response)
        for fence, message in list(self.important):
            self._send(message, fence)

    def blip(self) -> None:
        """The stream breaks; the agent comes back soon."""
        if self.session is not None:
            self.job.cut_stream(self.session)

    def cut_off(self) -> None:
        """The network loses everything from and to this agent."""
        self.cut = True
        if self.session is not None:
            self.job.cut_stream(self.session)

    def reachable(self) -> None:
        """The network is whole again."""
        self.cut = False

    def goodbye(self, *, terminated: bool) -> None:
        """SIGTERM, or the agent ends on purpose."""
        if self._able() and self.session is not None:
            self._send(Goodbye(reason="test", terminated=terminated))
            if not terminated:
                self._kill()
                self.left = True
                self.job.departed(self, None)
