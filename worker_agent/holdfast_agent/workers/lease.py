"""The lease: a word in the shared page that shows that this process is alive.

The event loop itself renews it, so the renewals stop when the loop is stuck. The zygote kills the
workers when the word is stale; this module notices that the process stood still.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

from holdfast.page import Page
from holdfast_agent.policies import lease
from holdfast_agent.policies.lease import LeaseVerdict

RENEWALS = 8
"""In the time of a lease: every 0.5 s in one of 4 s, at the instants of the heartbeats."""


class Lease:
    """Renews the word while the agent may keep workers."""

    def __init__(
        self,
        page: Page,
        on_expired: Callable[[float], bool],
        pause: Callable[[float], float] = lambda period: period,
    ) -> None:
        """Watch over the page's lease.

        Args:
            page: Has the word.
            on_expired: Kills the workers, called with the age in s; returns False if there were
                none.
            pause: Returns the time to the next work of a period, both in s.
        """
        self._page = page
        self._on_expired = on_expired
        self._pause = pause
        self._held = True
        self.longest_pause_seconds = 0.0
        """Longest time between two renewals, for the log."""

    def begin(self) -> None:
        """Renew for the first time: workers may start."""
        self._page.begin_lease(time.monotonic_ns())

    def resume(self) -> None:
        """Renew again: no process of the old round lives."""
        self._held = True
        self._page.begin_lease(time.monotonic_ns())

    async def run(self) -> None:
        """Renew until cancelled."""
        while True:
            self.tick(time.monotonic_ns())
            await asyncio.sleep(self._pause(self._page.lease_limit_ns * 1e-9 / RENEWALS))

    def tick(self, now_ns: int) -> None:
        """Renew, or report that the lease has run out meanwhile: see `policies.lease`."""
        age_ns = self._page.lease_age_ns(now_ns) or 0
        self.longest_pause_seconds = max(self.longest_pause_seconds, age_ns * 1e-9)
        verdict = lease.judge(held=self._held, age_ns=age_ns, limit_ns=self._page.lease_limit_ns)
        if verdict is LeaseVerdict.EXPIRED:
            self._held = not self._on_expired(age_ns * 1e-9)
            if self._held:
                self._page.begin_lease(now_ns)  # no worker could have outlived it
        elif verdict is LeaseVerdict.RENEW:
            self._page.renew_lease(now_ns)
