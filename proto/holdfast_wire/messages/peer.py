"""Frozen twins of `peer.proto`: field for field the same names, nothing computed here."""

from __future__ import annotations

import dataclasses

from holdfast_wire.messages.agent_orders import Arm
from holdfast_wire.messages.fence import Fence


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class GetRoundRequest:
    """GetRoundRequest names who asks."""

    node_rank: int = 0
    fence: Fence | None = None


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class GetRoundResponse:
    """GetRoundResponse: the newest fence that the asked agent has accepted."""

    fence: Fence | None = None
    has_master: bool = False
    """The asked agent has a master right now."""
    arm: Arm | None = None
    """What the ranks of the fence's round were asked for: a master may end while it tells the
    agents, and ranks that stop at different steps lose what they did since their checkpoint."""
