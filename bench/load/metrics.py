"""``python -m bench.load.metrics``: a master's CPU with its metrics scraped, and without any.

Masters take turns: one that serves no metrics, one that a scraper asks each 15 s. Beside that the
CPU of one scrape, of many in a row: it is below what two masters in turns differ by.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import resource
import shutil
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from importlib import metadata
from pathlib import Path
from statistics import median
from typing import Any, Final, Self

from bench.harness import machine, page, record
from bench.harness.launch import WorldError
from bench.harness.page import Verdict, at_most, table
from bench.load.herd import Herd, LoadError, Setup
from bench.load.master import JOB, LoadedMaster
from bench.load.results import OURS, LoadResult
from bench.load.scenarios import SETTLE_SECONDS, Window, start_world

OFF: Final = "off"
ON: Final = "on"
SCRAPE_SECONDS: Final = 15.0
"""As often as Prometheus asks by most people's settings."""
LIMIT_PERCENT: Final = 2.0
_METRICS: Final = "metrics"
_ASKED: Final = 200
"""Scrapes in a row, of which the CPU of one is the mean: the kernel counts in hundredths of 1 s."""
_WINDOW_SECONDS: Final = 60.0


class _Scraper:
    """Asks a master for its metrics each 15 s from a thread of its own, as Prometheus would."""

    def __init__(self, master: LoadedMaster) -> None:
        self.scrapes = 0
        """Those that were answered."""
        self._master = master
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._ended.wait(SCRAPE_SECONDS):
            scrape(self._master)
            self.scrapes += 1


def scrape(master: LoadedMaster) -> int:
    """Ask once; return the number of bytes."""
    with urllib.request.urlopen(master.metrics, timeout=10.0) as answer:  # noqa: S310 - its own
        return len(answer.read())


def _turn(
    agents: int, windows: int, seconds: float, metrics: str, directory: Path
) -> Iterator[LoadResult]:
    """Measure one master: its CPU for each message, window by window, and for a scrape."""
    master = LoadedMaster(directory, agents, {}, serves_metrics=metrics == ON)
    master.start()
    setup = Setup(master.target, JOB, master.key.hex(), 1)
    try:
        with Herd(setup, agents, directory / "generators.log") as herd:
            start_world(master, herd, agents)
            time.sleep(SETTLE_SECONDS)
            load = os.getloadavg()[0]
            with _Scraper(master) if metrics == ON else contextlib.nullcontext() as scraper:
                parts = [_window(master, herd, seconds) for _ in range(windows)]
            if scraper is not None and scraper.scrapes < windows * seconds // SCRAPE_SECONDS - 1:
                raise LoadError(f"only {scraper.scrapes} scrapes were answered")
            if parts[-1]["files"] < agents:
                raise LoadError(f"only {parts[-1]['files']} files are open: agents were lost")
            figures = {name: median(part[name] for part in parts) for name in parts[0]}
            figures |= _scrape_cost(master, figures["cores"]) if metrics == ON else {}
            samples = {"message_us": [part["message_us"] for part in parts]}
            yield LoadResult(
                system=OURS,
                scenario=_METRICS,
                clients=agents,
                variant=metrics,
                figures=figures,
                samples=samples,
                load=load,
            )
    finally:
        master.kill()


def _window(master: LoadedMaster, herd: Herd, seconds: float) -> dict[str, float]:
    herd.forget()
    window = Window(master)
    time.sleep(seconds)
    return window.close(herd.state()["sent"])


def _scrape_cost(master: LoadedMaster, cores: float) -> dict[str, float]:
    """Return the CPU of one scrape, what the agents took meanwhile left out, and its size."""
    before, since = master.look().cpu_s, time.monotonic()
    size = [scrape(master) for _ in range(_ASKED)][-1]
    spent, passed = master.look().cpu_s - before, time.monotonic() - since
    return {"scrape_cpu_ms": 1000 * (spent - cores * passed) / _ASKED, "scrape_bytes": size}


# ------------------------------------------------------------------------------------------ page


def page_of(about: Mapping[str, Any], results: Sequence[LoadResult]) -> str:
    """Return the whole page."""
    return page.fill(
        "load/metrics",
        run=f"{machine.words(about, 'gRPC {grpc}', without={'torch'})}.\n",
        promises=page.promises(list(judge(results)), page.PLAIN_COLUMNS),
        turns=_table(results),
    )


def judge(results: Sequence[LoadResult]) -> Iterator[Verdict]:
    """Hold each size against the bar."""
    for agents in sorted({one.clients for one in results}):
        of_size = [one for one in results if one.clients == agents]
        off = [one for one in of_size if one.variant == OFF]
        share = [
            100 * one.figures["scrape_cpu_ms"] / 1000 / SCRAPE_SECONDS / median(_cores(off))
            for one in of_size
            if one.variant == ON and off
        ]
        text = f"CPU of a scrape each {SCRAPE_SECONDS:g} s, of the master's, {agents:,} agents, %"
        yield page.judged(
            text,
            f"≤ {LIMIT_PERCENT:g}",
            share,
            at_most(LIMIT_PERCENT),
            lambda found: f"{median(found):.2f} ({min(found):.2f}–{max(found):.2f})",
        )


def _cores(results: Sequence[LoadResult]) -> list[float]:
    return [one.figures["cores"] for one in results]


def _table(results: Sequence[LoadResult]) -> str:
    names = {
        "cores": "cores",
        "µs/message": "message_us",
        "MB": "rss_mb",
        "CPU of a scrape, ms": "scrape_cpu_ms",
        "its bytes": "scrape_bytes",
    }
    rows = [
        [
            f"{one.clients:,}",
            one.variant,
            *(_number(one.figures.get(name)) for name in names.values()),
            f"{one.load:.1f}",
        ]
        for one in results
    ]
    ratios = [
        f"{agents:,} agents, µs/message on over off: {_words(_ratio(results, agents))}."
        for agents in sorted({one.clients for one in results})
    ]
    return "\n".join([table(["agents", "metrics", *names, "load average"], rows), *ratios, ""])


def _words(found: page.Ratio | None) -> str:
    return "–" if found is None else "{:.3f} ({:.3f}–{:.3f})".format(*found)


def _ratio(results: Sequence[LoadResult], agents: int) -> page.Ratio | None:
    of = {
        variant: [
            value
            for one in results
            if (one.clients, one.variant) == (agents, variant)
            for value in one.samples["message_us"]
        ]
        for variant in (ON, OFF)
    }
    return page.ratio(of[ON], of[OFF])


def _number(value: float | None) -> str:
    if value is None:
        return "–"
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


BENCH = record.Bench("metrics", page_of, LoadResult, module="load.metrics")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run what the command line says; return the exit code."""
    parser = BENCH.parser(__doc__)
    parser.add_argument("--agents", default="3000", help="sizes")
    parser.add_argument("--pairs", type=int, default=3, help="turns of each kind")
    parser.add_argument("--windows", type=int, default=2, help="windows of a turn")
    parser.add_argument("--seconds", type=float, default=_WINDOW_SECONDS, help="of each window")
    return BENCH.main(parser.parse_args(arguments), _run)


def _run(options: argparse.Namespace) -> None:
    _, files = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (files, files))
    sizes = [int(size) for size in options.agents.split(",")]
    with record.recording(options.out, plan="metrics", grpc=metadata.version("grpcio")) as note:
        for size in sizes:
            for metrics in (OFF, ON) * options.pairs:
                directory = Path(tempfile.mkdtemp(prefix="holdfast-metrics-"))
                try:
                    for result in _turn(size, options.windows, options.seconds, metrics, directory):
                        note(result)
                except (LoadError, OSError) as error:
                    raise WorldError(f"{error}; its files are in {directory}") from error
                shutil.rmtree(directory)


if __name__ == "__main__":
    sys.exit(main())
