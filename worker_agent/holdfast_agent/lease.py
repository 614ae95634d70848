"""The lease: a word in the shared page that says that this process is alive.

Renewed by the event loop itself, so that it stops when the loop is stuck. The zygote kills the
workers when the word is stale; here it is noticed that this process stood still.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

from holdfast.page import Page
from holdfast_agent.decide import lease
from holdfast_agent.decide.lease import LeaseVerdict

RENEW_SECONDS = 0.25
"""16 renewals in a lease of 4 s."""


class Lease:
    """Renews the word while the agent may keep workers."""

    def __init__(self, page: Page, on_expired: Callable[[float], bool]) -> None:
        """`on_expired(age_seconds)` kills what runs; it returns False when nothing did."""
        self._page = page
        self._on_expired = on_expired
        self._held = True
        self.longest_pause_seconds = 0.0
        """Longest time between two renewals, for the log."""

    def begin(self) -> None:
        """Renew for the first time: workers may start."""
        self._page.begin_lease(time.monotonic_ns())

    def resume(self) -> None:
        """Nothing of the old round lives: renew again."""
        self._held = True
        self._page.begin_lease(time.monotonic_ns())

    async def run(self) -> None:
        """Renew until cancelled."""
        while True:
            self.tick(time.monotonic_ns())
            await asyncio.sleep(RENEW_SECONDS)

    def tick(self, now_ns: int) -> None:
        """Renew, or say that the lease has run out in the meantime: see `decide.lease`."""
        age_ns = self._page.lease_age_ns(now_ns) or 0
        self.longest_pause_seconds = max(self.longest_pause_seconds, age_ns * 1e-9)
        verdict = lease.judge(held=self._held, age_ns=age_ns, limit_ns=self._page.lease_limit_ns)
        if verdict is LeaseVerdict.EXPIRED:
            self._held = not self._on_expired(age_ns * 1e-9)
            if self._held:
                self._page.begin_lease(now_ns)  # nothing ran that could have outlived it
        elif verdict is LeaseVerdict.RENEW:
            self._page.renew_lease(now_ns)
