"""torchrun with its c10d rendezvous, as its documentation says to run an elastic job.

Default: agent 0 hosts the store, every time-out is torch's own. Tuned: the waits as low as torchrun
accepts (whole seconds, above zero) without taking a healthy agent for dead, a store of its own for
each round's process group (the shared one breaks many recoveries), and the rendezvous store in a
process outside, as a careful user would run it: agent 0's death is the end of the job otherwise.
"""

from collections.abc import Mapping
from pathlib import Path

from bench.recovery.systems.agents import AgentPair, free_port
from bench.recovery.systems.contract import Setting

TUNED = {
    "last_call_timeout": 1,
    "join_timeout": 60,
    "close_timeout": 1,
    "heartbeat_timeout": 1,
    "keep_alive_interval": 1,
    "keep_alive_max_attempt": 3,
}
"""Seconds, but for the last, which is torchrun's own: with 2, an agent whose timer fires a little
early twice is taken for dead, and a newcomer starts a second world beside the running one."""

_STORE_HOST = Path(__file__).with_name("store_host.py")


class Torchrun(AgentPair):
    """Two torchrun agents and a c10d rendezvous."""

    def __init__(self, setting: Setting) -> None:
        super().__init__(setting)
        self._port = free_port()
        self._tuned = setting.variant == "tuned"

    def start(self) -> None:
        """Start the store's process where it is outside, then both agents."""
        if self._tuned:
            command = [self.setting.python, str(_STORE_HOST), str(self._port)]
            self.helper("store", command)
        super().start()

    def agent_command(self, node: int) -> list[str]:
        """Return the command of an elastic job of one to two nodes."""
        conf: dict[str, int] = {"is_host": int(node == 0 and not self._tuned)}
        if self._tuned:
            conf |= TUNED
        return [
            *(self.setting.python, "-m", "torch.distributed.run"),
            *("--nnodes=1:2", "--nproc-per-node=1", "--max-restarts=100", "--rdzv-id=bench"),
            *("--rdzv-backend=c10d", f"--rdzv-endpoint=127.0.0.1:{self._port}"),
            "--rdzv-conf=" + ",".join(f"{name}={value}" for name, value in conf.items()),
            "--local-addr=127.0.0.1",
            str(self.setting.script),
            *self.setting.script_arguments(),
        ]

    def agent_environment(self, node: int) -> Mapping[str, str]:
        """Return the switch that gives each round a store of its own."""
        return {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"} if self._tuned else {}
