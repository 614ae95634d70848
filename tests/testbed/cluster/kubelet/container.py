"""One container as a local process: its start, its end, and its starts again."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import json
import os
import signal
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO, Final

from cluster.kubelet.status import ContainerState
from holdfast_operator.pods.process import expand
from house import forks

_INIT: Final = Path(__file__).with_name("init.py")
_CHECKOUT: Final = Path(__file__).resolve().parents[4]
_FORKED: Final = {
    "holdfast-run": forks.Imports.TORCH,
    "holdfast-master": forks.Imports.SERVICES,
    "holdfast-operator": forks.Imports.SERVICES,
}
"""Commands whose start is a fork of a process that has imported what they need: 0.5 to 2 s of CPU
less."""
_FIRST_BACKOFF_SECONDS: Final = 0.5
"""A kubelet waits 10 s first; a test would wait with it."""
_LONGEST_BACKOFF_SECONDS: Final = 5.0
_REPORT_SECONDS: Final = 20.0
_LONGEST_MESSAGE: Final = 4096
_SIGKILLED: Final = 137


@dataclasses.dataclass(frozen=True, slots=True)
class Mount:
    """One file or folder of this machine inside a container."""

    source: Path
    target: str
    read_only: bool = False


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """The settings that a pod gives to all starts of one container."""

    folder: Path
    log: Path
    pause: int
    mounts: Sequence[Mount]
    environment: Mapping[str, str]
    pod_security: Mapping[str, Any]


class Container:
    """One container of a pod."""

    def __init__(self, manifest: Mapping[str, Any], changed: Callable[[], None]) -> None:
        self.manifest = manifest
        self.state = ContainerState(name=manifest["name"], image=manifest["image"])
        self.pid: int | None = None
        """Of its first process, as this machine counts."""
        self.stopping = False
        """No start again."""
        self.forced_reason = ""
        """What its next end is called instead of Error."""
        self._changed = changed

    async def run(self, setting: Setting, policy: str) -> None:
        """Start it, and start it again as `restartPolicy` says, until it has ended for good."""
        backoff = _FIRST_BACKOFF_SECONDS
        while True:
            code = await self._once(setting)
            again = restarts(self.manifest, policy, code)
            self.state.restarting = again and not self.stopping
            self._changed()
            if not self.state.restarting:
                return
            await asyncio.sleep(backoff)
            backoff = min(_LONGEST_BACKOFF_SECONDS, 2 * backoff)
            if self.stopping:
                self.state.restarting = False
                self._changed()
                return
            self.state.last = self.state.terminated()
            self.state.restarts += 1

    def kill(self, number: signal.Signals) -> None:
        """Send a signal to its first process."""
        if self.pid is not None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)

    async def _once(self, setting: Setting) -> int:
        termination = setting.folder / "termination-log"
        termination.write_bytes(b"")
        termination.chmod(0o666)
        report, report_end = os.pipe()
        file = setting.folder / "spec.json"
        spec = self._spec(setting, termination)
        file.write_text(json.dumps(spec))
        with setting.log.open("ab") as output:
            process = await _start(spec, file, report_end, output)
        os.close(report_end)
        self.pid = await _read_pid(report)
        self.state.started, self.state.ended = time.time(), None
        self.state.restarting = False
        self.state.identity = f"process://{process.pid}"
        self.state.ready = "readinessProbe" not in self.manifest
        self.state.is_started = "startupProbe" not in self.manifest
        self._changed()
        code = await (process.ended() if isinstance(process, forks.Fork) else process.wait())
        self._ended(code if code >= 0 else 128 - code, termination)
        return self.state.exit_code

    def _ended(self, code: int, termination: Path) -> None:
        self.pid = None
        state = self.state
        state.ended, state.exit_code, state.ready = time.time(), code, False
        usual = "Completed" if code == 0 else "Error"
        state.reason = self.forced_reason if self.forced_reason and code else usual
        self.forced_reason = ""
        state.message = termination.read_text(errors="replace")[-_LONGEST_MESSAGE:]

    def _spec(self, setting: Setting, termination: Path) -> dict[str, Any]:
        manifest, pod = self.manifest, setting.pod_security
        own = manifest.get("securityContext") or {}
        user = own.get("runAsUser", pod.get("runAsUser"))
        group = own.get("runAsGroup", pod.get("runAsGroup", user))
        groups = [pod["fsGroup"]] if "fsGroup" in pod else []
        where = manifest.get("terminationMessagePath", "/dev/termination-log")
        mounts = [*setting.mounts, Mount(termination, where)]
        words = [*(manifest.get("command") or ()), *(manifest.get("args") or ())]
        return {
            "folder": str(setting.folder / "root"),
            "pause": setting.pause,
            "mounts": [[str(one.source), one.target, one.read_only] for one in mounts],
            "cwd": manifest.get("workingDir") or "/",
            "uid": user,
            "gid": group,
            "groups": groups,
            "read_only": bool(own.get("readOnlyRootFilesystem")),
            "argv": [expand(word, setting.environment) for word in words],
            "env": dict(setting.environment),
            "code": [str(_CHECKOUT), sys.prefix],
            "forked": _forked(words, setting.environment),
            "kubelet": os.getpid(),
        }


def _forked(words: Sequence[str], environment: Mapping[str, str]) -> str | None:
    """Return the script of a command of which a fork is what a start makes."""
    if not words or words[0] not in _FORKED or not forks.forkable(environment):
        return None
    return str(Path(sys.executable).with_name(words[0]))


async def _start(
    spec: Mapping[str, Any], file: Path, report: int, output: BinaryIO
) -> asyncio.subprocess.Process | forks.Fork:
    """Start what makes the container; its standard input is where it reports."""
    if spec["forked"]:
        files = [report, output.fileno(), output.fileno()]
        words = [str(_INIT), str(file)]
        imports = _FORKED[Path(spec["forked"]).name]
        return await asyncio.to_thread(
            forks.start, words, env=os.environ, files=files, imports=imports
        )
    return await asyncio.create_subprocess_exec(
        *(sys.executable, "-I", "-S", _INIT, file), stdin=report, stdout=output, stderr=output
    )


def restarts(manifest: Mapping[str, Any], policy: str, code: int) -> bool:
    """Return whether a container's own rules, its policy or the pod's start it again."""
    for rule in manifest.get("restartPolicyRules") or ():
        codes = rule["exitCodes"]
        if (code in codes["values"]) is (codes["operator"] == "In"):
            return bool(rule["action"] == "Restart")
    own = manifest.get("restartPolicy", policy)
    return own == "Always" or (own == "OnFailure" and code != 0)


async def _read_pid(descriptor: int) -> int | None:
    """The process id that the start reports; None where it failed before that."""
    reader = asyncio.StreamReader()
    loop = asyncio.get_running_loop()
    transport, _ = await loop.connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(reader), os.fdopen(descriptor, "rb")
    )
    try:
        async with asyncio.timeout(_REPORT_SECONDS):
            line = await reader.readline()
    finally:
        transport.close()
    return int(line) if line else None
