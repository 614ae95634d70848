"""Frozen twins of `fence.proto`: field for field the same names, nothing computed here."""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Fence:
    """Fence orders messages. Receivers drop what is older than what they know."""

    epoch: int = 0
    """Grows with each master process of the job. Allocated by whoever starts the master."""
    incarnation: str = ""
    """Random id of that master process. An equal epoch with another incarnation is refused."""
    group: int = 0
    """Group of nodes that forms one world; 0 unless a job has replica groups."""
    round: int = 0
    """Grows with each world of the group. 0: not about a round."""
