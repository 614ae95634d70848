"""A node under a master that does what a test says."""

from __future__ import annotations

import dataclasses
from typing import Any

from agents.agent_process import AgentProcess, Script, StartAgent
from masters.scripted_master import AgentStream, ScriptedMaster


@dataclasses.dataclass(frozen=True)
class Node:
    """A scripted master, and what starts agents under it; see the fixtures of tests/agent."""

    master: ScriptedMaster
    start_agent: StartAgent
    script: Script

    def agent(self, code: str, *args: str, nproc: int = 1, **options: Any) -> AgentProcess:
        """Start an agent with a training script; `options` are those of `start_agent`."""
        return self.start_agent(f"--nproc-per-node={nproc}", *args, self.script(code), **options)

    async def start(
        self, code: str, *args: str, nproc: int = 1, **options: Any
    ) -> tuple[AgentProcess, AgentStream]:
        """Start an agent as `agent` does; return it with its stream once its zygote is ready."""
        agent = self.agent(code, *args, nproc=nproc, **options)
        return agent, await self.master.warm_stream()
