"""A token bucket: how many requests may be made now. Pure but for the clock that is passed in."""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass(slots=True)
class TokenBucket:
    """Tokens come at a steady rate, up to a number that may be spent at once."""

    rate: float
    """Tokens a second."""
    burst: float
    """Most that are kept."""
    tokens: float
    at: float = 0.0

    def take(self, now: float) -> float:
        """Take one token; return the seconds to wait before it may be spent."""
        self.tokens = min(self.burst, self.tokens + max(0.0, now - self.at) * self.rate) - 1
        self.at = max(self.at, now)
        return max(0.0, -self.tokens / self.rate)
