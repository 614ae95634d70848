"""Run one container: `python init.py SPEC.json`. Enters its pod's namespaces, makes its own root.

Standard library only, because it starts once for each container. `unshare --fork` would do part of
it, but reports a child that SIGKILL ended as exit code 1. Writes the child's process id into the
standard input, and ends as the child does: with its code, or 128 and the signal.

The container of one of the product's own commands is a fork of a process that has imported what it
needs (`house.forks`): there `main` runs in that fork, and the child runs the command's script
instead of starting an interpreter.
"""

from __future__ import annotations

import ctypes
import json
import os
import runpy
import shutil
import signal
import sys
import tempfile
from pathlib import Path
from typing import Any, NoReturn

_LIBC = ctypes.CDLL(None, use_errno=True)
_NEWNS, _NEWUTS, _NEWIPC, _NEWPID, _NEWNET = 0x20000, 0x4000000, 0x8000000, 0x20000000, 0x40000000
_RDONLY, _REMOUNT, _BIND, _REC, _PRIVATE = 1, 32, 4096, 16384, 1 << 18
_PR_SET_PDEATHSIG, _PR_SET_DUMPABLE, _PR_SET_NO_NEW_PRIVS = 1, 4, 38


def main() -> None:
    """Make the container, run its command to its end."""
    spec = json.loads(Path(sys.argv[1]).read_text())
    _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    _enter(spec)
    root = _make_root(Path(spec["folder"]))
    _bind_all(root, spec)
    child = os.fork()
    if child == 0:
        _become(root, spec)
    os.write(0, f"{child}\n".encode())
    os.close(0)
    _, status = os.waitpid(child, 0)
    os._exit(128 + os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status))


def _check(result: int, what: str) -> None:
    if result:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")


def _mount(source: str | None, target: str, kind: str | None, flags: int, data: str = "") -> None:
    words = [None if word is None else os.fsencode(word) for word in (source, target, kind)]
    _check(_LIBC.mount(*words, flags, data.encode() or None), f"mount {source} at {target}")


def _enter(spec: dict[str, Any]) -> None:
    pause, kubelet = spec["pause"], spec["kubelet"]
    # The kubelet's mounts, which a fork of another process has not: the pods' volumes.
    _join(kubelet, "mnt", _NEWNS)
    for name, kind in (("net", _NEWNET), ("uts", _NEWUTS), ("ipc", _NEWIPC)):
        _join(pause, name, kind)
    _check(_LIBC.unshare(_NEWNS | _NEWPID), "unshare")
    _mount(None, "/", None, _REC | _PRIVATE)


def _join(process: int, name: str, kind: int) -> None:
    descriptor = os.open(f"/proc/{process}/ns/{name}", os.O_RDONLY)
    _check(_LIBC.setns(descriptor, kind), f"setns {name}")
    os.close(descriptor)


def _make_root(folder: Path) -> str:
    """This machine's file system, with everything written to it thrown away at the end."""
    _mount("tmpfs", str(folder), "tmpfs", 0)
    for name in ("upper", "work", "root"):
        (folder / name).mkdir()
    root = str(folder / "root")
    layers = f"lowerdir=/,upperdir={folder}/upper,workdir={folder}/work"
    _mount("overlay", root, "overlay", 0, layers)
    (folder / "root" / "root").chmod(0o755)
    for name in ("/dev", "/sys"):
        _mount(name, root + name, None, _BIND | _REC)
    return root


def _bind_all(root: str, spec: dict[str, Any]) -> None:
    for source, target, read_only in spec["mounts"]:
        place = root + _resolved(root, target)
        is_folder = Path(source).is_dir()
        Path(place if is_folder else os.path.dirname(place)).mkdir(parents=True, exist_ok=True)  # noqa: PTH120
        if not is_folder:
            Path(place).touch()
        _mount(source, place, None, _BIND | _REC)
        if read_only:
            _mount(None, place, None, _REMOUNT | _BIND | _RDONLY)
    for code in spec["code"]:  # a checkout below /tmp, where a pod has a volume
        if any(Path(code).is_relative_to(target) for _, target, _ in spec["mounts"]):
            Path(root + code).mkdir(parents=True, exist_ok=True)
            _mount(code, root + code, None, _BIND | _REC)
    if spec["read_only"]:
        _mount(None, root, None, _REMOUNT | _RDONLY)


def _resolved(root: str, target: str) -> str:
    """Resolve a path inside the root. /var/run is a symbolic link to an absolute place."""
    outside = os.open("/", os.O_RDONLY)
    os.chroot(root)
    os.chdir("/")
    try:
        return os.path.realpath(target)
    finally:
        os.fchdir(outside)
        os.chroot(".")
        os.close(outside)


def _become(root: str, spec: dict[str, Any]) -> None:
    """Become the command, in the child."""
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    words, env = spec["argv"], spec["env"]
    try:
        _mount("proc", root + "/proc", "proc", 0)
        os.chroot(root)
        os.chdir(spec["cwd"])
        user, group = spec["uid"], spec["gid"]
        if user is not None:
            os.setgroups(spec["groups"])
            os.setresgid(group, group, group)
            os.setresuid(user, user, user)
            _LIBC.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
        # After the change of user, which clears it.
        _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if not spec["forked"] or shutil.which(words[0], path=env["PATH"]) != spec["forked"]:
            os.execvpe(words[0], words, env)
    except OSError as error:
        os.write(2, f"container: {words[:1]}: {error}\n".encode())
        os._exit(127 if isinstance(error, FileNotFoundError) else 126)
    _run_script([spec["forked"], *words[1:]], env)


def _run_script(words: list[str], env: dict[str, str]) -> NoReturn:
    """Run a script of Python in this process, as an interpreter that has just started would."""
    _LIBC.prctl(_PR_SET_DUMPABLE, 1, 0, 0, 0)  # as an exec leaves it
    os.environ.clear()
    os.environ.update(env)
    tempfile.tempdir = None  # another user's, by now
    sys.argv = words
    sys.path[0] = str(Path(words[0]).parent)
    runpy.run_path(words[0], run_name="__main__")
    sys.exit()


if __name__ == "__main__":
    main()
