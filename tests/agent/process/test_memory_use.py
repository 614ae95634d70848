"""Host memory: the figures of control groups, and a rank that the kernel ends for lack of it."""

from __future__ import annotations

import dataclasses
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from agents import control_groups
from agents.plain_python import plain_python
from agents.scripted_node import Node
from holdfast_agent.workers.memory_use import GroupMemory, MemoryWatch, group_memory
from holdfast_wire.messages import MemoryUse, WorkerExited
from masters.scripted_master import assignment

MOUNTS = (Path("/sys/fs/cgroup/memory"), Path("/sys/fs/cgroup"))
"""Of version 1, and of version 2."""
UNIFIED = "29 23 0:26 / /sys/fs/cgroup rw,nosuid - cgroup2 cgroup rw,nsdelegate"
LEGACY = "33 31 0:30 {top} /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory"
MIB = 1 << 20


def _v2(folder: str = "", limit: str = "max", peak: str = "700", kills: int = 0) -> dict[str, str]:
    """Return a group's files as Linux 6 writes them."""
    events = f"low 0\nhigh 0\nmax 12\noom {kills}\noom_kill {kills}\noom_group_kill 0\n"
    files = {
        "memory.max": f"{limit}\n",
        "memory.peak": f"{peak}\n",
        "memory.current": "500\n",
        "memory.events": events,
    }
    return {f"{folder}{name}": text for name, text in files.items()}


def _v1(folder: str, limit: str, kills: int) -> dict[str, str]:
    control = f"oom_kill_disable 0\nunder_oom 0\noom_kill {kills}\n"
    files = {
        "memory.limit_in_bytes": f"{limit}\n",
        "memory.max_usage_in_bytes": "700\n",
        "memory.usage_in_bytes": "500\n",
        "memory.oom_control": control,
    }
    return {f"memory/{folder}{name}": text for name, text in files.items()}


def _group(limit: int | None, kills: int | None, peak: int | None = 700) -> GroupMemory:
    return GroupMemory(limit=limit, peak=peak, current=500, oom_kills=kills)


@pytest.mark.parametrize(
    ("groups", "mounts", "files", "expected"),
    [
        pytest.param("0::/\n", UNIFIED, _v2(limit="1000", kills=3), _group(1000, 3), id="v2"),
        pytest.param("0::/\n", UNIFIED, _v2(), _group(None, 0), id="v2-without-limit"),
        pytest.param(
            "0::/\n",
            UNIFIED,
            {**_v2(limit="9"), "memory.peak": ""},
            _group(9, 0, peak=None),
            id="v2-before-linux-5.19",
        ),
        pytest.param(
            "0::/pod/c1\n",
            UNIFIED,
            {**_v2("pod/c1/", limit="2000", kills=1), **_v2("pod/", limit="1500", kills=7)},
            _group(1500, 1),
            id="v2-the-pod-s-limit-is-tighter",
        ),
        pytest.param("0::/\n", UNIFIED, {}, GroupMemory(), id="v2-root-group"),
        pytest.param(
            "4:memory:/docker/abc\n1:name=systemd:/x\n",
            LEGACY.format(top="/docker/abc"),
            _v1("", "1000", 2),
            _group(1000, 2),
            id="v1-in-a-container",
        ),
        pytest.param(
            "4:memory:/a\n0::/a\n",
            f"{LEGACY.format(top='/')}\n{UNIFIED.replace('cgroup rw,nosuid', 'cgroup/unified rw')}",
            {**_v1("a/", "9223372036854771712", 0), **_v1("", "9223372036854771712", 0)},
            _group(None, 0),
            id="v1-without-limit-beside-an-empty-v2",
        ),
        pytest.param(
            "4:memory:/a\n",
            LEGACY.format(top="/"),
            {**_v1("a/", "10", 0), "memory/a/memory.oom_control": "oom_kill_disable 0\n"},
            _group(10, None),
            id="v1-before-linux-4.13",
        ),
        pytest.param(
            "0::/\n",
            UNIFIED,
            {
                "memory.max": "-5",
                "memory.current": "many",
                "memory.events": "oom_kill\noom_kill x",
            },
            GroupMemory(),
            id="odd-files-are-no-numbers",
        ),
        pytest.param("", "", {}, GroupMemory(), id="no-control-groups"),
    ],
)
def test_the_memory_of_every_kind_of_control_group_is_read(
    tmp_path: Path, groups: str, mounts: str, files: dict[str, str], expected: GroupMemory
) -> None:
    """Version 1, 2 and both; the tightest limit that can be seen, the use of the own group."""
    assert group_memory(control_groups.tree(tmp_path, groups, mounts, files)) == expected


def test_kills_are_counted_from_the_round_s_start(tmp_path: Path) -> None:
    """A kill of an earlier round is not this one's."""
    root = control_groups.tree(tmp_path, "0::/\n", UNIFIED, _v2(limit="1000", kills=2))
    watch = MemoryWatch(root)
    unknown = watch.use(1)
    assert unknown is not None
    assert unknown.oom_kills == 0, "nobody knows when they were"
    watch.begin(1)
    control_groups.tree(tmp_path, "0::/\n", UNIFIED, _v2(limit="1000", kills=3))
    watch.begin(2)
    found = MemoryUse(limit_bytes=1000, peak_bytes=700, current_bytes=500, oom_kills=1)
    assert watch.use(1) == found
    assert watch.use(2) == dataclasses.replace(found, oom_kills=0)


def test_a_node_without_control_groups_says_nothing(tmp_path: Path) -> None:
    """No figures are better than made-up ones."""
    watch = MemoryWatch(control_groups.tree(tmp_path, "", "", {}))
    watch.begin(1)
    assert watch.use(1) is None


@pytest.fixture
def limited_group() -> Iterator[Path]:
    """A real control group with 768 MiB of memory, where this machine lets the test make one."""
    limit = str(768 * MIB)
    kinds = (
        (MOUNTS[0], {"memory.limit_in_bytes": limit, "memory.memsw.limit_in_bytes": limit}),
        (MOUNTS[1], {"memory.max": limit}),
    )
    with control_groups.limited(kinds) as folder:
        yield folder


_MEASURE = """
import pathlib, subprocess, sys
pathlib.Path(sys.argv[1]).write_text("0")
from holdfast_agent.workers.memory_use import MemoryWatch
watch = MemoryWatch()
watch.begin(1)
code = "b'x' * (2 << 30)"
ended = subprocess.run([sys.executable, "-c", code], check=False).returncode
use = watch.use(1)
print(ended, use.limit_bytes, use.peak_bytes > 600 << 20, use.current_bytes > 0, use.oom_kills)
"""


def test_the_kernel_s_own_count_of_kills_is_read(limited_group: Path) -> None:
    """A real process that wants more than its real group has."""
    done = plain_python("-c", _MEASURE, str(limited_group / "cgroup.procs"))
    assert done.stdout == f"-9 {768 * MIB} True True 1\n"


OTHERS = pytest.mark.extended(
    "a child of a rank is in its group, whose kills are counted as its own are",
    held_by=[
        "agent/process/test_memory_use.py::test_a_failure_is_reported_with_the_container_s_memory"
    ],
)
HUNGRY = "open('/proc/self/oom_score_adj', 'w').write('1000'); b'x' * (2 << 30)"
"""Wants more than the group has; the kernel ends it and not the agent, which may be larger."""
_KILLS_ITSELF = "import os, signal; os.kill(os.getpid(), signal.SIGKILL)"
_HUNGRY_CHILD = f"""
import subprocess, sys
child = subprocess.run([sys.executable, "-c", {HUNGRY!r}])
raise RuntimeError(f"the loader ended with {{child.returncode}}")
"""


@pytest.mark.train
@pytest.mark.timeout(240)
@pytest.mark.parametrize(
    ("text", "exit_code", "kills"),
    [
        pytest.param(HUNGRY, -signal.SIGKILL, 1, id="the-kernel-ends-the-rank"),
        pytest.param(_KILLS_ITSELF, -signal.SIGKILL, 0, id="somebody-else-does"),
        pytest.param(_HUNGRY_CHILD, 1, 1, id="the-kernel-ends-its-child", marks=OTHERS),
    ],
)
async def test_a_failure_is_reported_with_the_container_s_memory(
    limited_group: Path,  # first, so that it goes last
    node: Node,
    text: str,
    exit_code: int,
    kills: int,
) -> None:
    """The kernel's kills for lack of memory are counted; anybody else's SIGKILL is not."""
    join = f'echo $$ > {limited_group}/cgroup.procs; exec "$@"'
    _, stream = await node.start(
        text, env={"HOLDFAST_PRELOAD": "-torch"}, wrap=("sh", "-c", join, "x")
    )
    stream.send(assignment(await stream.prepare_store("s"), nproc=1), 1)
    exited = await stream.wait(WorkerExited)
    assert exited.exit_code == exit_code
    assert exited.memory is not None
    assert exited.memory.limit_bytes == 768 * MIB
    assert exited.memory.oom_kills == kills
