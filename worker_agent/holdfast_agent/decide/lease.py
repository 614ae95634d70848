"""Whether a lease may be renewed.

Only the rule; the word in the shared page, the clock and the killing are the shell's.
"""

from __future__ import annotations

import enum


class LeaseVerdict(enum.Enum):
    """What to do about the lease at this moment."""

    RENEW = "renew"
    EXPIRED = "expired"
    """It ran out while this process stood still: nothing of its workers may live."""
    WITHHOLD = "withhold"
    """It has run out before and the workers are not known to be dead yet."""


def judge(*, held: bool, age_ns: int, limit_ns: int) -> LeaseVerdict:
    """Decide on a lease that was renewed `age_ns` ago and lasts `limit_ns`.

    A lease that ran out is not simply renewed: where agent and zygote stood still together,
    nobody has killed the workers yet, and a newer world may run elsewhere.
    held: False once it ran out, until the workers are known to be dead.
    """
    if not held:
        return LeaseVerdict.WITHHOLD
    return LeaseVerdict.EXPIRED if age_ns > limit_ns else LeaseVerdict.RENEW
