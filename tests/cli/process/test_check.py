"""`holdfast check`: options, exit codes, and its two forms of output."""

from __future__ import annotations

import functools
import json
from pathlib import Path
from typing import Any

import pytest

from holdfast_cli.check import table
from holdfast_wire.resources import TRAITS, Resource
from house.patience import patience
from house.programs import holdfast

check = functools.partial(holdfast, "check", timeout=110.0 * patience())


def row(resource: Resource, **changes: Any) -> dict[str, Any]:
    """A line of the answer."""
    values = {
        "resource": resource.value,
        "subject": "",
        "value": 1.0,
        "unit": TRAITS[resource].unit,
        "reference": None,
        "verdict": "no reference",
        "reason": "",
        "limit": "",
    }
    return values | changes


def reference(folder: Path, *rows: dict[str, Any]) -> str:
    """A file for --reference."""
    file = folder / "healthy.json"
    file.write_text(json.dumps({"kind": "another machine", "figures": rows}))
    return str(file)


def test_a_wrong_option_ends_with_2_and_one_line() -> None:
    """The tool's own error is passed on; nothing is measured."""
    done = check("--storage", "/nowhere/at/all")
    assert done.returncode == 2
    assert done.stdout == ""
    (line,) = done.stderr.splitlines()
    assert line.startswith("holdfast: --storage '/nowhere/at/all': there is no such folder; name")


def test_the_table_has_figures_limits_verdicts_and_a_last_line() -> None:
    """For people: rows without quotes or nulls, and the fault in the last line."""
    answer = {
        "node": "gpu7",
        "kind": "8 x CPU",
        "seconds": 7.5,
        "notices": ["the reference is of other hardware: 4 x CPU"],
        "figures": [
            row(Resource.CPU_MATMUL, subject="cpu", value=0.25),
            row(
                Resource.DISK_WRITE,
                subject="/data",
                value=0.1,
                reference=0.5,
                verdict="slow",
                reason="20% of the reference, 40% is the least",
            ),
            row(Resource.SHM_ROOM, value=8.0, verdict="ok", limit="at least 0.0312 GiB"),
            row(Resource.CLOCK_OFFSET, value=None, verdict="not checked", reason="give --ntp"),
        ],
    }
    lines = table(answer).splitlines()
    assert lines[0].split() == ["RESOURCE", "MEASURED", "REFERENCE", "VERDICT"]
    assert lines[1].split("   ")[0] == "cpu matmul (cpu)"
    assert "0.1 GB/s" in lines[2]
    assert "0.5 GB/s" in lines[2]
    assert lines[2].endswith("20% of the reference, 40% is the least")
    assert "at least 0.0312 GiB" in lines[3]
    assert lines[4].split()[-4:] == ["not", "checked", "give", "--ntp"]
    assert lines[-2] == "notice: the reference is of other hardware: 4 x CPU"
    assert lines[-1] == (
        "gpu7 (8 x CPU), in 7.5 s: FAULT: disk write; without a reference: cpu matmul; "
        "not checked: clock offset"
    )


@pytest.mark.train
def test_a_node_without_a_fault_ends_with_0_and_serves_as_reference(tmp_path: Path) -> None:
    """JSON for programs has every figure with its unit; the next check compares with it."""
    done = check("-o", "json", "--storage", str(tmp_path))
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout)
    assert answer["healthy"] is True
    found = {one["resource"]: one for one in answer["figures"]}
    assert found["clock_offset"]["verdict"] == "not checked"
    measured = [one for one in found.values() if one["verdict"] != "not checked"]
    assert len(measured) >= 10
    assert all(one["unit"] == TRAITS[Resource(one["resource"])].unit for one in measured)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.train
def test_a_slow_node_ends_with_1_and_names_the_resource(tmp_path: Path) -> None:
    """A reference that no machine reaches."""
    file = reference(tmp_path, row(Resource.MEMORY_BANDWIDTH, value=1e6))
    done = check("--reference", file)
    assert done.returncode == 1, done.stderr
    assert "FAULT: memory bandwidth" in done.stdout.splitlines()[-1]
    assert "notice: the reference is of other hardware: another machine" in done.stdout
