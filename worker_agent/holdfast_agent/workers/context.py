"""Context of the agent's parts: values, no behaviour."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Mapping

from holdfast.page import Page
from holdfast_agent.checkpoint.arenas import Arenas
from holdfast_agent.config.settings import Settings
from holdfast_agent.workers.log_files import LogKeeper
from holdfast_agent.zygote.handle import Zygote


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class AgentContext:
    """Settings and resources that all parts of an agent use; made once."""

    settings: Settings
    page: Page
    process: Zygote
    logs: LogKeeper
    arenas: Arenas
    inherited: Mapping[str, str]
    """The agent's own environment, with the user's thread counts."""
    spared: Callable[[], Collection[int]] = tuple
    """Returns the agent's children that belong to no round (a standalone run's master)."""
