"""Makes the environments that the systems run in, once, in a cache outside the checkout.

Each peer gets its own, with the very torch that Holdfast's environment has: what a peer's
dependencies do to the time of ``import torch`` shall not fall on another. Nothing in them is
patched: DLRover's pods start their master as a process of its own, and so does the benchmark, so
the one call of DLRover 0.6.1 that newer torch refuses (``SubprocessHandler``, used where an agent
starts a master by itself) is never reached.
"""

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from bench.harness.launch import free_port

TIMEOUT_SECONDS = 1800
"""For one installation: torch is 4.6 GB where nothing is cached."""


@dataclass(frozen=True, slots=True)
class Environment:
    """The environment of one system: its packages on top of torch and numpy."""

    name: str
    packages: tuple[str, ...] = ()
    newest_python: tuple[int, int] | None = None
    """The newest that the system runs on; None: any."""


PEERS = {
    "torchrun": Environment("torchrun"),
    # Besides its extras, 0.6.1 imports protobuf and does not say so; [k8s] also with the local
    # master. It imports telnetlib, which Python 3.13 removed.
    "dlrover": Environment(
        "dlrover-0.6.1", ("dlrover[torch,k8s]==0.6.1", "protobuf>=5.29,<6"), (3, 12)
    ),
    "torchft": Environment("torchft-0.2.0", ("torchft==0.2.0",)),
    "torchft nightly": Environment("torchft-nightly-2026.10.26", ("torchft-nightly==2026.10.26",)),
}
"""By system."""

_SCRIPT = Path(__file__).parents[1] / "recovery" / "script.py"
_ALONE = {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "GLOO_SOCKET_IFNAME": "lo"}


class SetupError(RuntimeError):
    """A system cannot be set up on this machine."""


def python_of(system: str) -> str:
    """Return the interpreter of ``system``; make the system's environment where there is none yet.

    Raises:
        SetupError: no fitting interpreter, or the installation failed; says what the tool said.
    """
    peer = PEERS.get(system)
    if peer is None:
        return sys.executable
    source = _interpreter(peer)
    version = _run([source, "-c", "import sys; print('%d.%d' % sys.version_info[:2])"]).strip()
    directory = _cache() / f"{peer.name}-torch{_torch()}-python{version}"
    python = str(directory / "bin" / "python")
    if not (directory / "ready").exists():
        shutil.rmtree(directory, ignore_errors=True)
        _create(peer, source, directory)
        (directory / "ready").touch()
    return python


def dlrover(left_out: list[str]) -> str | None:
    """Return DLRover's interpreter; without one return None, and note the reason in `left_out`."""
    try:
        return python_of("dlrover")
    except SetupError as error:
        left_out.append(f"DLRover: {error}")
        return None


def warm_up(python: str) -> None:
    """Train a few steps, save and restore, so that bytecode is on disk and files are in memory."""
    with tempfile.TemporaryDirectory(prefix="holdfast-bench-") as directory:
        command = [python, "-W", "ignore", str(_SCRIPT), "--restore=dcp"]  # it imports the most
        command += [f"--log-dir={directory}/steps", f"--saves-dir={directory}/saves"]
        for steps in (11, 12):  # the second start restores what the first one saved
            _run([*command, f"--steps={steps}"], {**_ALONE, "MASTER_PORT": str(free_port())})


def environment() -> dict[str, str]:
    """Return this process's environment without the variables that would change Python's ways.

    Without bytecode on disk ``import torch`` takes three times as long, for every system.
    """
    dropped = {"PYTHONDONTWRITEBYTECODE", "PYTHONPATH", "PYTHONSTARTUP", "VIRTUAL_ENV"}
    return {name: value for name, value in os.environ.items() if name not in dropped}


def _cache() -> Path:
    home = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(home).expanduser() / "holdfast" / "bench"


def _torch() -> str:
    """Return torch's version here, without the build's own suffix (+cpu, +cu132)."""
    return metadata.version("torch").partition("+")[0]


def _create(peer: Environment, source: str, directory: Path) -> None:
    wanted = [f"torch=={_torch()}", f"numpy=={metadata.version('numpy')}", *peer.packages]
    python, uv = str(directory / "bin" / "python"), shutil.which("uv")
    directory.parent.mkdir(parents=True, exist_ok=True)
    if uv is not None:
        _run([uv, "venv", "--quiet", "--python", source, str(directory)])
        _run([uv, "pip", "install", "--quiet", "--python", python, *wanted])
    else:
        _run([source, "-m", "venv", str(directory)])
        _run([python, "-m", "pip", "install", "--quiet", *wanted])


def _interpreter(peer: Environment) -> str:
    """Return this Python, or the newest on PATH that the system still runs on."""
    newest = peer.newest_python
    if newest is None or sys.version_info[:2] <= newest:
        return sys.executable
    for minor in range(newest[1], 9, -1):
        if found := shutil.which(f"python3.{minor}"):
            return found
    raise SetupError(
        f"{peer.name} needs Python <= {newest[0]}.{newest[1]}, and none is on PATH: install one, "
        f"or leave it out with --systems"
    )


def _run(command: Sequence[str], variables: Mapping[str, str] | None = None) -> str:
    """Run ``command`` with ``variables`` on top of the environment; return what it printed."""
    done = subprocess.run(
        command,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_SECONDS,
        env={**environment(), **(variables or {})},
        check=False,
    )
    if done.returncode != 0:
        said = (done.stderr or done.stdout).strip()[-2000:]
        raise SetupError(f"{' '.join(command[:6])} … exited with {done.returncode}: {said}")
    return done.stdout
