"""One operator under measurement: its process, its CPU and memory, its own metrics."""

from __future__ import annotations

import asyncio
import dataclasses
import math
import os
import signal
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

import aiohttp
from prometheus_client.parser import text_string_to_metric_families

from bench.load.usage import Usage, look
from cluster.children import Child
from holdfast_operator.settings import OperatorSettings

LOOKS = "holdfast_operator_look_seconds_bucket"
REQUESTS = "holdfast_operator_api_requests_total"
_END_SECONDS: Final = 60.0
_CALM_SECONDS: Final = 4.0
"""Longer than the period of a job's status."""
_RESYNC_SECONDS: Final = OperatorSettings(namespace="", identity="", image="").resync_s
_MORE_LOOKS: Final = 2.0
"""Jobs that came in bursts are looked at in bursts."""


@dataclasses.dataclass(frozen=True, slots=True)
class Moment:
    """One look at the process."""

    at: float
    """Monotonic, s."""
    usage: Usage
    """Before its metrics were read."""
    cpu_s: float
    """Its CPU after that: to answer is no work of its own."""
    requests: float
    """To the API server so far; watches of kopf are not among them."""
    looks: Mapping[float, float]
    """Reconciles so far that took at most this long, s."""

    def since(self, before: Moment) -> Use:
        """Return what was used between two looks."""
        seconds = self.at - before.at
        looks = {le: count - before.looks.get(le, 0) for le, count in self.looks.items()}
        return Use(
            seconds=seconds,
            cpu_s=self.usage.cpu_s - before.cpu_s,
            requests=self.requests - before.requests,
            looks=looks.get(math.inf, 0.0),
            look_p99_s=quantile(looks, 0.99),
        )


@dataclasses.dataclass(frozen=True, slots=True)
class Use:
    """What a process used over a time."""

    seconds: float
    cpu_s: float
    requests: float
    looks: float
    look_p99_s: float


class OperatorProcess:
    """The process, until `end`."""

    def __init__(
        self, argv: Sequence[str], environ: Mapping[str, str], folder: Path, port: int
    ) -> None:
        """Start it; `port`: of its metrics, 0: it has none."""
        self._child = Child("operator", argv, folder, environ)
        self._port = port
        self.jobs = 0
        """Jobs that it looks after."""

    @property
    def alive(self) -> bool:
        """Return True while it runs."""
        return self._child.alive

    def last_words(self) -> str:
        """Return the end of its log."""
        return self._child.last_words()

    def end(self) -> None:
        """Kill it."""
        self._child.kill()

    async def stop(self) -> None:
        """Have it end in order: it gives the Lease up."""
        os.kill(self.pid, signal.SIGTERM)
        await asyncio.to_thread(self._child.wait, _END_SECONDS)

    def usage(self) -> Usage:
        """Return its CPU and memory; raises OSError where it has ended."""
        return look(self.pid)

    @property
    def pid(self) -> int:
        """Its process id: the launcher has become the program."""
        return self._child.pid

    def forget_peak(self) -> None:
        """Let the kernel count the peak of its memory anew."""
        Path(f"/proc/{self.pid}/clear_refs").write_text("5")

    async def moment(self) -> Moment:
        """Look at it."""
        requests, looks = 0.0, dict[float, float]()
        at, usage = time.monotonic(), self.usage()
        if self._port:
            for name, labels, value in await self._metrics():
                if name == REQUESTS:
                    requests += value
                elif name == LOOKS:
                    looks[float(labels["le"])] = value
        return Moment(at, usage, self.usage().cpu_s, requests, looks)

    async def ready(self) -> bool:
        """Return True once it says that it is ready."""
        try:
            async with (
                aiohttp.ClientSession() as session,
                session.get(f"http://127.0.0.1:{self._port}/readyz") as answer,
            ):
                return answer.status == 200
        except (aiohttp.ClientError, OSError):
            return False

    async def _metrics(self) -> list[tuple[str, dict[str, str], float]]:
        async with (
            aiohttp.ClientSession() as session,
            session.get(f"http://127.0.0.1:{self._port}/metrics") as answer,
        ):
            text = await answer.text()
        families = text_string_to_metric_families(text)
        return [(one.name, one.labels, one.value) for family in families for one in family.samples]


async def quiet(process: OperatorProcess, cores: float, limit_s: float) -> float:
    """Wait until it is calm for a while; return the seconds waited.

    It uses at most so much of a core, and reconciles at most once a second, beside the looks that
    each of its jobs gets without an event: where others take all cores, little CPU alone does not
    show that nothing waits.
    """
    looks_per_s = 1.0 + _MORE_LOOKS * process.jobs / _RESYNC_SECONDS
    began = time.monotonic()
    before = await process.moment()
    while time.monotonic() < began + limit_s:
        await asyncio.sleep(_CALM_SECONDS)
        now = await process.moment()
        use, before = now.since(before), now
        if use.cpu_s <= use.seconds * cores and use.looks <= use.seconds * looks_per_s:
            break
    return time.monotonic() - began


def quantile(buckets: Mapping[float, float], part: float) -> float:
    """Return a quantile of a histogram's cumulative buckets, as Prometheus does; 0: it is empty."""
    total = buckets.get(math.inf, 0.0)
    below, lower = 0.0, 0.0
    for upper, count in sorted(buckets.items()):
        if total and count >= part * total:
            if math.isinf(upper):
                return lower
            return lower + (upper - lower) * (part * total - below) / (count - below)
        below, lower = count, upper
    return 0.0
