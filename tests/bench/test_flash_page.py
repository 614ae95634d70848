"""The flash benchmark's bars and page judge what was measured."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from bench import ROOT
from bench.flash import results as r
from bench.flash.__main__ import BENCHES
from bench.flash.page import judge, page_of
from bench.flash.results import ON_GPU, ROWS, SaveResult, chosen, figures, ordered
from bench.harness import machine, sandbox

ABOUT = machine.about("flash", [])

KEPT = {
    (r.ONE, r.FLASH_1): 0.7,
    (r.ONE, r.FLASH_2): 0.4,
    (r.ONE, r.ASYNC_THREAD): 1.0,
    (r.ONE, r.ASYNC): 2.5,
    (r.ONE, r.DLROVER): 1.0,
    (r.TWO, r.FLASH_1): 0.7,
    (r.TWO, r.ASYNC_THREAD): 1.5,
    (r.TWO, r.DLROVER_FSDP): 3.0,
    (r.SMALL, r.FLASH_1): 1.0,
    (r.SMALL, r.DLROVER): 12.0,
    (r.STALL, r.OVERLAPPED): 0.5,
    (r.STALL, r.DLROVER_DISK): 1.5,
    (r.FIRST, r.FLASH_1): 0.7,
    (r.RESTORE, r.FLASH_1): 1.3,
    (r.RESTORE, r.DCP_LOAD): 5.0,
}
"""× copy of each, in a run that keeps every promise."""


def _run(changed: dict[tuple[str, str], float] | None = None) -> list[SaveResult]:
    """Return a run of three saves each, with the given × around their median."""
    values = KEPT | (changed or {})
    found = [
        SaveResult(
            case=case,
            system=system,
            bytes=2**30,
            seconds=[0.09 * x, 0.1 * x, 0.12 * x],
            copies=[0.1, 0.1, 0.1],
            cpu=[x],
            first=[x],
            figures={"collectives": 0.0, "left_bytes": 0.0},
            load=1.0,
        )
        for (case, system), x in values.items()
    ]
    stages = {"started_s": 0.2, "restored_s": 0.2, "fresh_s": 0.1, "cold_copy_s": 0.15}
    crash = SaveResult(
        case=r.CRASH, system=r.FLASH_1, seconds=[0.5], copies=[0.15], figures=stages, bytes=2**20
    )
    return [*found, crash]


def _kept(found: list[SaveResult]) -> dict[str, bool | None]:
    return {verdict.text: verdict.kept for verdict in judge(found)}


def test_a_good_run_keeps_every_promise() -> None:
    """Nothing is left unmeasured, and nothing is said to be missed."""
    assert set(_kept(_run()).values()) == {True}
    assert page_of(ABOUT, _run()).count("| yes |") == len(judge(_run()))


@pytest.mark.parametrize(
    ("what", "x", "missed"),
    [
        ((r.ONE, r.FLASH_1), 0.76, {"blocking, 1 rank, 1 thread"}),
        ((r.ONE, r.DLROVER), 0.87, {"… below DLRover's memory save"}),
        ((r.ONE, r.ASYNC), 1.9, {"… below dcp.async_save as it comes"}),
        ((r.TWO, r.ASYNC_THREAD), 1.3, {"… below the best dcp.async_save"}),
        ((r.SMALL, r.FLASH_1), 1.66, {"20,000 small tensors, without 15 ms", "… below DLRover"}),
        ((r.STALL, r.OVERLAPPED), 0.71, {"whole stall until durable, overlapped"}),
        ((r.RESTORE, r.DCP_LOAD), 4.5, {"… below dcp.load from page cache"}),
    ],
)
def test_each_promise_is_judged_by_itself(
    what: tuple[str, str], x: float, missed: set[str]
) -> None:
    """The page marks as broken exactly the promises whose bars the results miss."""
    verdicts = [one for one in judge(_run({what: x})) if one.kept is not True]
    assert {one.text for one in verdicts} == missed
    assert page_of(ABOUT, _run({what: x})).count("**no**") == len(missed)


def test_a_missed_promise_is_beside_what_the_machine_allows() -> None:
    """In × of the copy, and of the rival: a bar beyond that is missed by the machine."""
    measured = {(r.ONE, r.BLOCK): 0.64, (r.ONE, r.FLASH_2): 0.66, (r.ONE, r.DLROVER): 1.056}
    found = {one.text: one for one in judge(_run(measured))}
    assert found["blocking, 1 rank, 2 threads"].reached.endswith("; one block, all cores: 0.64×")
    memory = found["… below DLRover's memory save"].reached
    assert memory.startswith("1.6×")
    assert memory.endswith("; one block, all cores: 1.7×")
    assert "one block" not in found["blocking, 1 rank, 1 thread"].reached, "it is kept"
    assert "one block" not in found["blocking, 2 ranks FSDP2"].reached


def test_collectives_and_memory_left_are_missed_promises() -> None:
    """One collective in a save, or one byte left by our own systems, is seen; a peer's is not."""
    run = _run()
    busy = [replace(one, figures=one.figures | {"collectives": 0.5}) for one in run]
    assert _kept(busy)["collectives in a save"] is False
    left = "bytes of shared memory left when all have ended"
    leaky = [replace(one, figures=one.figures | {"left_bytes": 1.0}) for one in run]
    theirs = [new if new.system in r.PEERS else old for old, new in zip(run, leaky, strict=True)]
    assert (_kept(leaky)[left], _kept(theirs)[left]) == (False, True)


def test_what_was_not_measured_is_said_to_be_so() -> None:
    """A system that failed leaves its promises open, and the page says why."""
    failed = SaveResult(case=r.ONE, system=r.DLROVER, failed="exited with 1: no module")
    run = [failed if one.system == r.DLROVER and one.case == r.ONE else one for one in _run()]
    assert _kept(run)["… below DLRover's memory save"] is None
    assert "exited with 1: no module" in page_of(ABOUT, run)


def test_rounds_count_together_and_ratios_pair_each_save_with_its_own_copy() -> None:
    """A copy that was slow makes its own save's × smaller, and no other's."""
    one = SaveResult(case=r.ONE, system=r.FLASH_1, seconds=[1.0, 2.0], copies=[1.0, 4.0])
    found = figures([one, replace(one, seconds=[3.0], copies=[1.0])], r.ONE, r.FLASH_1)
    assert found is not None
    assert found.x == (1.0, 0.5, 3.0)


def test_the_plan_measures_every_promised_system_ten_times() -> None:
    """Two rounds of five repeats; what only adds to the picture has all ten in one."""
    planned = [(row.case, row.system) for row in ordered(chosen(""))]
    best_of = {(r.TWO, r.ASYNC), (r.ONE, r.ASYNC_PROCESS)}
    assert all(planned.count(key) == 2 for key in KEPT if key not in best_of)
    assert len(planned) == sum(row.rounds for row in ROWS)
    assert {row.rounds * row.repeats(5) for row in (*ROWS, *ON_GPU)} == {10}


@pytest.mark.extended(
    "runs a benchmark for real; the parts of the product that it drives have tests of their own",
    held_by=[
        "bench/test_flash_page.py::test_collectives_and_memory_left_are_missed_promises",
        "agent/process/test_arenas.py::test_no_byte_is_left_when_the_job_has_ended",
        "flash/process/test_matrix.py::test_from_memory_every_world_loads_what_any_other_saved",
    ],
)
@pytest.mark.train
@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_small_run_measures_our_own_systems(tmp_path: Path) -> None:
    """One rank, two ranks and a restore of a small state: figures, and nothing left behind."""
    try:
        sandbox.check()
    except sandbox.SandboxError as error:
        pytest.skip(str(error))
    out = tmp_path / "flash.jsonl"
    command = [sys.executable, "-m", "bench.flash", "--mib=192", "--repeats=1", f"--out={out}"]
    for only in ("two ranks: flash", "restore: flash"):
        done = subprocess.run(
            [*command, "--crashes=0", "--no-peer", f"--only={only}"],
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        _, found = BENCHES["cpu"].read(out.read_text().splitlines())
        assert [one.failed for one in found] == ["", ""], done.stderr
        assert all(one.seconds and one.copies for one in found)
        assert {one.figures["left_bytes"] for one in found} == {0}
