"""A token bucket that limits requests. Pure: the caller passes the time."""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass(slots=True)
class TokenBucket:
    """Tokens arrive at a steady rate, up to a number that may be spent at once."""

    rate: float
    """Tokens per second."""
    burst: float
    """Largest number of tokens that are kept."""
    tokens: float
    at: float = 0.0

    def take(self, now: float) -> float:
        """Take one token; return the seconds to wait before it may be spent."""
        self.tokens = min(self.burst, self.tokens + max(0.0, now - self.at) * self.rate) - 1
        self.at = max(self.at, now)
        return max(0.0, -self.tokens / self.rate)
