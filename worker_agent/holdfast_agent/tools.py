"""What the parts of an agent work with: settings, page, zygote, log files. Values, no behaviour."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Mapping

from holdfast.page import Page
from holdfast_agent import zygote
from holdfast_agent.arenas import Arenas
from holdfast_agent.config import Settings
from holdfast_agent.control import Control
from holdfast_agent.logs import LogKeeper


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Tools:
    """Made once, before the agent."""

    settings: Settings
    page: Page
    process: zygote.Zygote
    control: Control
    logs: LogKeeper
    arenas: Arenas
    inherited: Mapping[str, str]
    """The agent's own environment, with the user's thread counts."""
    spared: Callable[[], Collection[int]] = tuple
    """Returns the children of the agent that are no part of a round (a standalone run's master)."""
