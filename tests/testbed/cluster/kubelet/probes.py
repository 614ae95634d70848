"""Startup, readiness and liveness probes of one container: HTTP, TCP and commands."""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections.abc import Callable, Mapping
from typing import Any, Final

from cluster.kubelet.container import Container
from cluster.kubelet.spaces import Space

_SHORTEST_SECONDS: Final = 0.1
"""Between two probes; periods of readiness and startup are shortened tenfold, because a test waits
for them."""


async def watch(container: Container, space: Space, changed: Callable[[], None]) -> None:
    """Probe for as long as the container exists; ends when cancelled."""
    startup = container.manifest.get("startupProbe")
    while True:
        await _until(lambda: container.state.running)
        began = container.state.started
        if startup is not None:
            await _succeed(container, space, startup)
            container.state.is_started = True
            changed()
        probing = [
            asyncio.create_task(check(container, space, changed))
            for name, check in (("readinessProbe", _readiness), ("livenessProbe", _liveness))
            if name in container.manifest
        ]
        try:
            await _until(lambda: container.state.started != began or not container.state.running)  # noqa: B023
        finally:
            for task in probing:
                task.cancel()
            await asyncio.gather(*probing, return_exceptions=True)


async def _readiness(container: Container, space: Space, changed: Callable[[], None]) -> None:
    probe = container.manifest["readinessProbe"]
    failures = 0
    while True:
        if await probe_once(container, space, probe):
            failures, ready = 0, True
        else:
            failures += 1
            ready = container.state.ready and failures < probe.get("failureThreshold", 3)
        if ready != container.state.ready:
            container.state.ready = ready
            changed()
        await asyncio.sleep(_period(probe))


async def _liveness(container: Container, space: Space, changed: Callable[[], None]) -> None:
    probe = container.manifest["livenessProbe"]
    await asyncio.sleep(probe.get("initialDelaySeconds", 0))
    failures = 0
    while failures < probe.get("failureThreshold", 3):
        await asyncio.sleep(float(probe.get("periodSeconds", 10)))  # not shortened: it kills
        failures = 0 if await probe_once(container, space, probe) else failures + 1
    container.kill(signal.SIGKILL)
    changed()


async def _succeed(container: Container, space: Space, probe: Mapping[str, Any]) -> None:
    while not await probe_once(container, space, probe):  # noqa: ASYNC110 - probes poll
        await asyncio.sleep(_period(probe))


async def probe_once(container: Container, space: Space, probe: Mapping[str, Any]) -> bool:
    """Run one probe and return whether it succeeds."""
    try:
        async with asyncio.timeout(probe.get("timeoutSeconds", 1)):
            if "exec" in probe:
                return await _command(container, probe["exec"]["command"])
            if "httpGet" in probe:
                return await _http(space, _number(container, probe["httpGet"]["port"]), probe)
            if "tcpSocket" in probe:
                port = _number(container, probe["tcpSocket"]["port"])
                _, writer = await space.dial("127.0.0.1", port)
                writer.close()
                return True
    except (OSError, TimeoutError):
        return False
    raise NotImplementedError(f"probe {sorted(probe)}: this kubelet knows exec, httpGet, tcpSocket")


async def _http(space: Space, port: int, probe: Mapping[str, Any]) -> bool:
    reader, writer = await space.dial("127.0.0.1", port)
    path = probe["httpGet"].get("path", "/")
    try:
        writer.write(f"GET {path} HTTP/1.0\r\nHost: localhost\r\n\r\n".encode())
        line = await reader.readline()
    finally:
        writer.close()
    words = line.split()
    return len(words) > 1 and words[1].isdigit() and 200 <= int(words[1]) < 400


async def _command(container: Container, command: list[str]) -> bool:
    if container.pid is None:
        return False
    process = await asyncio.create_subprocess_exec(
        *("nsenter", "-t", str(container.pid), "-a", "--root", "--wd", *command),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.DEVNULL,
    )
    try:
        return await process.wait() == 0
    except asyncio.CancelledError:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()
        raise


def _number(container: Container, port: int | str) -> int:
    if isinstance(port, int):
        return port
    ports = container.manifest.get("ports") or ()
    return int(next(one["containerPort"] for one in ports if one.get("name") == port))


def _period(probe: Mapping[str, Any]) -> float:
    return max(_SHORTEST_SECONDS, float(probe.get("periodSeconds", 10)) / 10)


async def _until(condition: Callable[[], bool]) -> None:
    while not condition():  # noqa: ASYNC110 - of a state that many places change
        await asyncio.sleep(_SHORTEST_SECONDS / 2)
