"""Number of processes of `--nproc-per-node=auto` and `cpu` where a container has a CPU limit."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from agents import control_groups
from agents.plain_python import plain_python
from holdfast_agent.config.cgroups import cpu_quota, usable_cpus

V1_MOUNT = Path("/sys/fs/cgroup/cpu")
V2_MOUNT = Path("/sys/fs/cgroup")
UNIFIED = "29 23 0:26 {top} /sys/fs/cgroup rw,nosuid - cgroup2 cgroup rw,nsdelegate"
LEGACY = "33 31 0:30 {top} /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct"
HYBRID = "34 31 0:31 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw"


@pytest.mark.parametrize(
    ("groups", "mounts", "files", "quota"),
    [
        pytest.param("0::/\n", UNIFIED.format(top="/"), {"cpu.max": "150000 100000\n"}, 1.5),
        pytest.param("0::/\n", UNIFIED.format(top="/"), {"cpu.max": "max 100000\n"}, None),
        pytest.param("0::/\n", UNIFIED.format(top="/"), {}, None, id="root-group-has-no-file"),
        pytest.param(
            "0::/a/b\n",
            UNIFIED.format(top="/"),
            {"a/b/cpu.max": "400000 100000", "a/cpu.max": "200000 100000"},
            2.0,
            id="the-group-above-is-tighter",
        ),
        pytest.param(
            "0::/kubepods/pod1/c1\n",
            UNIFIED.format(top="/kubepods/pod1/c1"),
            {"cpu.max": "300000 100000"},
            3.0,
            id="no-namespace-but-own-mount",
        ),
        pytest.param(
            "0::/../other\n",
            UNIFIED.format(top="/"),
            {"cpu.max": "100000 50000"},
            2.0,
            id="outside-the-namespace",
        ),
        pytest.param(
            "4:cpu,cpuacct:/docker/abc\n1:name=systemd:/x\n",
            LEGACY.format(top="/docker/abc"),
            {"cpu,cpuacct/cpu.cfs_quota_us": "250000\n", "cpu,cpuacct/cpu.cfs_period_us": "100000"},
            2.5,
            id="v1",
        ),
        pytest.param(
            "4:cpu,cpuacct:/\n",
            LEGACY.format(top="/"),
            {"cpu,cpuacct/cpu.cfs_quota_us": "-1\n", "cpu,cpuacct/cpu.cfs_period_us": "100000"},
            None,
            id="v1-without-limit",
        ),
        pytest.param(
            "4:cpu,cpuacct:/a\n0::/a\n",
            f"{LEGACY.format(top='/')}\n{HYBRID}",
            {
                "cpu,cpuacct/a/cpu.cfs_quota_us": "50000",
                "cpu,cpuacct/a/cpu.cfs_period_us": "100000",
            },
            0.5,
            id="both-versions",
        ),
        pytest.param("0::/\n", UNIFIED.format(top="/"), {"cpu.max": "odd"}, None, id="unreadable"),
        pytest.param("", "", {}, None, id="no-control-groups"),
    ],
)
def test_the_quota_of_every_kind_of_control_group_is_read(
    tmp_path: Path, groups: str, mounts: str, files: dict[str, str], quota: float | None
) -> None:
    """Version 1, 2 and both; the tightest of the groups that can be seen."""
    root = control_groups.tree(tmp_path, groups, mounts, files)
    assert cpu_quota(root) == quota
    affinity = len(os.sched_getaffinity(0))
    assert usable_cpus(root) == (affinity if quota is None else max(1, min(affinity, int(quota))))


@pytest.fixture
def limited_group() -> Iterator[Path]:
    """A real control group of one CPU and a half, where this machine lets the test make one."""
    kinds = ((V1_MOUNT, {"cpu.cfs_quota_us": "150000"}), (V2_MOUNT, {"cpu.max": "150000 100000"}))
    with control_groups.limited(kinds) as folder:
        yield folder


def test_a_process_in_a_limited_group_knows_its_quota(limited_group: Path) -> None:
    """The kernel's own files, of whichever version this machine has."""
    code = (
        "import pathlib, sys; pathlib.Path(sys.argv[1]).write_text('0'); "
        "from holdfast_agent.config.cgroups import cpu_quota, usable_cpus; "
        "print(cpu_quota(), usable_cpus())"
    )
    done = plain_python("-c", code, str(limited_group / "cgroup.procs"))
    assert done.stdout == "1.5 1\n"
