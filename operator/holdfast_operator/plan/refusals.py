"""What the API server does not let be made now: a quota is used up, a policy says no.

No failure of the job: it is waited for, longer and longer, and people read the API server's words.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Final

from holdfast_operator.plan.pods import Slot

FIRST_WAIT_S: Final = 1.0
"""After the first refusal: quota often becomes free because a pod of the same job goes."""
LONGEST_WAIT_S: Final = 30.0
"""The wait doubles up to this, so that a raised quota is noticed within half a minute."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """One place whose pod may not be made."""

    text: str
    """The API server's words."""
    tries: int
    """Refusals in a row."""
    not_before: float
    """No new try sooner than this; Unix time, s."""


Refusals = Mapping[Slot, Refusal]


def refused(before: Refusal | None, text: str, now: float) -> Refusal:
    """The refusal after one more, `before` being the last one in a row."""
    tries = 1 if before is None else before.tries + 1
    wait = min(LONGEST_WAIT_S, FIRST_WAIT_S * 2 ** min(tries - 1, 30))
    return Refusal(text=text, tries=tries, not_before=now + wait)
