"""Refusals of a pod by the API server: a quota is used up, a policy refuses.

They are no failure of the job: it waits, longer and longer, and the status has the API server's
text.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Final

from holdfast_operator.plan.pods import PodSlot

FIRST_WAIT_SECONDS: Final = 1.0
"""Wait after the first refusal: often quota becomes free as a pod of the same job goes."""
LONGEST_WAIT_SECONDS: Final = 30.0
"""The wait doubles up to this, so that a raised quota is noticed within half a minute."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ApiRefusal:
    """Refusal of one place's pod."""

    text: str
    """Text of the API server."""
    tries: int
    """Number of refusals in a row."""
    not_before: float
    """Earliest time of the next try; Unix time, s."""


Refusals = Mapping[PodSlot, ApiRefusal]


def refused(before: ApiRefusal | None, text: str, now: float) -> ApiRefusal:
    """Return the refusal after one more; `before`: the last one in a row."""
    tries = 1 if before is None else before.tries + 1
    wait = min(LONGEST_WAIT_SECONDS, FIRST_WAIT_SECONDS * 2 ** min(tries - 1, 30))
    return ApiRefusal(text=text, tries=tries, not_before=now + wait)
