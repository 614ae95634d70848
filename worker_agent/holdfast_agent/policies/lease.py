"""Lease renewal: decides whether the lease may be renewed.

Only the rule; the shared page, the clock and the kill are in `workers.lease` and the zygote.
"""

from __future__ import annotations

import enum


class LeaseVerdict(enum.Enum):
    """Action for the lease at this moment."""

    RENEW = "renew"
    EXPIRED = "expired"
    """It ran out while this process stood still: none of its workers may live."""
    WITHHOLD = "withhold"
    """It ran out before, and the workers are not known to be dead yet."""


def judge(*, held: bool, age_ns: int, limit_ns: int) -> LeaseVerdict:
    """Decide on a lease that was renewed `age_ns` ago and lasts `limit_ns`.

    A lease that ran out is not simply renewed. If agent and zygote stood still together, the
    workers were not killed yet, and a newer world may run elsewhere. held: False once the lease ran
    out, until the workers are known to be dead.
    """
    if not held:
        return LeaseVerdict.WITHHOLD
    return LeaseVerdict.EXPIRED if age_ns > limit_ns else LeaseVerdict.RENEW
