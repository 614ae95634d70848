"""The public face: `holdfast.init`, `job.step`, `job.section`, with and without an agent."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

import holdfast
from agents.page_worker import page_of, python
from holdfast import job as job_module
from holdfast.environment import Environment
from holdfast.job import Job
from holdfast.page import Page, PageError
from holdfast.page_sample import Section
from holdfast.page_slot import SlotWriter


def _job(page: Page | None = None) -> Job:
    return Job(Environment(), None if page is None else SlotWriter(page, 0, 0))


def _fresh(code: str, **variables: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code],
        env=os.environ | variables,
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )


def test_without_an_agent_everything_is_a_no_op() -> None:
    """A plain `python train.py` runs, hears CONTINUE, and sees a world of one."""
    code = (
        "import holdfast; job = holdfast.init();"
        "assert job.step(1, samples=8, loss=0.5) is holdfast.CONTINUE;"
        "s = job.section('eval'); s.__enter__(); s.__exit__(None, None, None);"
        "print(job.rank, job.world_size, job.round, job.restart_count)"
    )
    done = _fresh(code)
    assert (done.stdout, done.stderr) == ("0 1 0 0\n", "")


def test_importing_the_sdk_imports_no_torch() -> None:
    """The SDK must not slow down or change a script that does not use it."""
    code = "import sys, holdfast; holdfast.init(); print({'torch', 'grpc'} & {*sys.modules})"
    assert _fresh(code).stdout == "set()\n"


def test_the_errors_of_a_checkpoint_are_found_beside_it() -> None:
    """A script that catches them imports `holdfast` and nothing below it, still without torch."""
    code = (
        "import sys, holdfast;"
        "names = [getattr(holdfast, name).__name__ for name in holdfast.__all__ if name[0] in 'CRS'"
        " and name.upper() != name];"
        "print(*names, {'torch'} & {*sys.modules})"
    )
    assert _fresh(code).stdout == (
        "CheckpointError Checkpointer RestoreError Schedule Section StateError set()\n"
    )


def test_the_environment_says_who_one_is() -> None:
    """Rank, world, round and restarts come from torchrun's and the agent's variables."""
    done = _fresh(
        "import holdfast as h; j = h.init(); print(j.rank, j.world_size, j.round, j.restart_count)",
        RANK="3",
        WORLD_SIZE="8",
        HOLDFAST_ROUND="5",
        TORCHELASTIC_RESTART_COUNT="2",
    )
    assert done.stdout == "3 8 5 2\n"


def test_a_wrong_variable_is_named() -> None:
    """A RANK that is no number is the user's to repair, by name."""
    with pytest.raises(ValueError, match="RANK='x': expected a whole number"):
        Environment.read({"RANK": "x"})


def test_init_is_idempotent() -> None:
    """The second call returns the first one's job."""
    assert _fresh("import holdfast; print(holdfast.init() is holdfast.init())").stdout == "True\n"


def test_steps_reach_the_page(page: Page) -> None:
    """The agent's sample has the steps, samples and loss that the script said."""
    job = _job(page)
    before = time.monotonic_ns()
    job.step(41, samples=8, loss=2.5)
    job.step(42, samples=8, loss=2.25)
    sample = page.read(0)
    assert (sample.step, sample.samples, sample.loss) == (42, 16, 2.25)
    assert (sample.first_step, sample.section) == (41, Section.TRAIN)
    assert before < sample.first_step_ns < sample.step_ns < time.monotonic_ns()
    assert sample.step_duration_ns == sample.step_ns - sample.first_step_ns


def test_a_loss_may_be_absent_or_nan(page: Page) -> None:
    """No loss and a diverged loss are different news."""
    job = _job(page)
    job.step(1)
    assert page.read(0).loss is None
    job.step(2, loss=math.nan)
    loss = page.read(0).loss
    assert loss is not None
    assert math.isnan(loss)


class _Tensor:
    """Looks like a one-element tensor."""

    def __init__(self, value: Any) -> None:
        self.value = value

    def item(self) -> Any:
        if isinstance(self.value, Exception):
            raise self.value
        return self.value

    def __float__(self) -> float:
        raise AssertionError("a tensor with gradients warns here")

    def __index__(self) -> int:
        return int(self.value)


def test_tensors_are_taken_as_numbers(page: Page) -> None:
    """A loss or a count may be a one-element tensor."""
    _job(page).step(_Tensor(3), samples=_Tensor(4), loss=_Tensor(0.5))
    sample = page.read(0)
    assert (sample.step, sample.samples, sample.loss) == (3, 4, 0.5)


@pytest.mark.parametrize(
    ("n", "error", "message"),
    [
        (0, ValueError, r"n=0\): n is the number of completed steps and must grow"),
        (-4, ValueError, r"n=-4\)"),
        (5, ValueError, r"the last call had n=5"),
        (1, ValueError, r"a second loop .* counts on: pass n = 5 \+ its own step"),
        (4, ValueError, r"n=4\)"),
        (2**63, ValueError, r"n=9223372036854775808\)"),
        (6.0, TypeError, r"n=6.0\): expected a whole number"),
        ("6", TypeError, r"n='6'\): expected a whole number"),
        (None, TypeError, r"n=None\)"),
        (True, TypeError, r"n=True\)"),
    ],
)
@pytest.mark.parametrize("with_agent", [True, False], ids=["agent", "no-agent"])
def test_a_wrong_step_is_named(
    page: Page, n: Any, error: type[Exception], message: str, *, with_agent: bool
) -> None:
    """A step that does not grow is refused, with an agent or without, and nothing is stored."""
    job = _job(page if with_agent else None)
    job.step(5)
    with pytest.raises(error, match=message):
        job.step(n)
    assert page.read(0).step == (5 if with_agent else 0)
    assert job.step(6) is holdfast.CONTINUE


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"samples": -1}, ValueError, r"samples=-1\): expected a number ≥ 0"),
        ({"samples": 2**64}, ValueError, r"samples=18446744073709551616\): expected a number ≥ 0"),
        ({"samples": True}, TypeError, r"samples=True\): expected a whole number"),
        ({"loss": "1.5"}, ValueError, r"loss='1.5'\): expected one number"),
        ({"loss": 10**400}, ValueError, "expected one number"),
        ({"fingerprint": 1.5}, TypeError, r"fingerprint=1.5\): expected a whole number"),
        ({"samples": 1.5}, TypeError, r"samples=1.5\): expected a whole number"),
        ({"loss": "much"}, ValueError, r"loss='much'\): expected one number"),
        ({"loss": _Tensor(RuntimeError("2 elements"))}, ValueError, "expected one number"),
    ],
)
def test_other_wrong_arguments_are_named(
    arguments: dict[str, Any], error: type[Exception], message: str
) -> None:
    """Samples and loss are checked too, and the step counts as not reported."""
    job = _job()
    with pytest.raises(error, match=message):
        job.step(1, **arguments)
    assert job.step(1) is holdfast.CONTINUE


def test_steps_may_be_reported_in_strides(page: Page) -> None:
    """A script that reports every tenth step is served as well."""
    job = _job(page)
    for n in (10, 20, 30):
        job.step(n, samples=100)
    assert (page.read(0).step, page.read(0).samples) == (30, 300)


def test_save_and_stop_is_answered_once(page: Page) -> None:
    """The script hears SAVE_AND_STOP at the armed step only."""
    job = _job(page)
    page.set_barrier(0, 1, 2)
    heard = [job.step(n) for n in (1, 2, 3)]
    assert heard == [holdfast.CONTINUE, holdfast.SAVE_AND_STOP, holdfast.CONTINUE]


def test_sections_nest_and_come_back(page: Page) -> None:
    """After a section the one around it is current again, also when it ends by an exception."""
    job = _job(page)
    job.step(1)
    seen = []
    with suppress(KeyError), job.section("eval"):
        with job.section("checkpoint"):
            seen.append(page.read(0).section)
        seen.append(page.read(0).section)
        raise KeyError
    assert seen == [Section.CHECKPOINT, Section.EVAL]
    assert page.read(0).section is Section.TRAIN


@pytest.mark.parametrize("name", ["lunch", None])
@pytest.mark.parametrize("with_agent", [True, False], ids=["agent", "no-agent"])
def test_an_unknown_section_is_named(page: Page, name: Any, *, with_agent: bool) -> None:
    """The error lists what would be right, with an agent or without."""
    job, text = (
        _job(page if with_agent else None),
        rf"\({name!r}\): expected one of init, first_step",
    )
    with pytest.raises(ValueError, match=text):
        job.section(name).__enter__()


def test_the_first_step_has_a_section_of_its_own(page: Page, writer: SlotWriter) -> None:
    """From `init` to the first step is FIRST_STEP: building, compiling and restoring take long."""
    assert page.read(0).section is Section.INIT
    writer.attach()
    assert page.read(0).section is Section.FIRST_STEP
    assert page.read(0).attached


ATTACH = """
    import os, sys
    import holdfast
    job = holdfast.init()
    print(os.getpid(), flush=True)
    sys.stdin.readline()
    job.step(1)
    print("stepped", flush=True)
    sys.stdin.readline()
"""


def test_a_process_attaches_by_its_environment() -> None:
    """HOLDFAST_PAGE and an inherited descriptor are enough, also after exec."""
    with page_of(2) as page:
        page.reset(1, 4)
        with python(page, 1, ATTACH, HOLDFAST_ROUND="4") as process:
            assert process.stdout is not None
            assert process.stdin is not None
            pid = int(process.stdout.readline())
            sample = page.read(1)
            assert (sample.pid, sample.round, sample.attached) == (pid, 4, True)
            print(file=process.stdin, flush=True)
            process.stdout.readline()
            assert page.read(1).step == 1
            assert page.read(0).pid == 0


@pytest.mark.parametrize("helper", ["fork", "subprocess"])
def test_a_helper_process_does_not_write_its_parents_slot(page: Page, helper: str) -> None:
    """Forked data loaders, and programs that a rank starts, report nothing."""
    forked = "pid = os.fork()\nif not pid:\n    job.step(99); os._exit(0)\nos.waitpid(pid, 0)"
    started = (
        "import subprocess, sys\n"
        "code = 'import holdfast; holdfast.init().step(99)'\n"
        "subprocess.run([sys.executable, '-W', 'ignore', '-c', code], close_fds=False, check=True)"
    )
    body = "import os, holdfast\njob = holdfast.init()\njob.step(1)\n"
    code = body + (forked if helper == "fork" else started) + "\njob.step(2)"
    with python(page, 0, code) as process:
        _, errors = process.communicate(timeout=30)
    assert (process.returncode, errors) == (0, "")
    assert page.read(0).step == 2


def test_a_slot_of_another_round_is_not_taken(page: Page) -> None:
    """A process of a dead round cannot report into the new one."""
    page.reset(0, 8)
    with pytest.raises(PageError, match="slot 0: of round 8, this process of 7"):
        SlotWriter(page, 0, 7)


def test_a_slot_of_a_living_process_is_not_taken(page: Page) -> None:
    """Two processes never share a slot."""
    with python(page, 0, ATTACH) as process:
        assert process.stdout is not None
        process.stdout.readline()
        with pytest.raises(PageError, match="slot 0 belongs to process"):
            SlotWriter(page, 0, 0)
    SlotWriter(page, 0, 0)  # its owner is gone: free


def test_a_lost_descriptor_is_said_once() -> None:
    """A rank whose wrapper closed the descriptor runs without the agent, and says why."""
    done = _fresh("import holdfast; holdfast.init(); holdfast.init().step(1)", HOLDFAST_PAGE="97:0")
    assert done.returncode == 0
    assert done.stderr.count("holdfast runs without its agent: descriptor 97 is not open") == 1


def test_an_adopted_slot_is_used_by_its_process_only(
    page: Page, writer: SlotWriter, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`init` uses the slot that the launcher has claimed for this very process."""
    monkeypatch.setattr(job_module, "_job", None)
    job_module.adopt(writer)
    monkeypatch.setattr(job_module, "_adopted", writer)  # put back afterwards
    try:
        holdfast.init().step(1)
        assert page.read(0).step == 1
    finally:
        holdfast.init().detach()


def test_a_step_log_has_a_line_for_each_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rank, round and world size beside the figures; a successor goes on in the same file."""
    for number, name in (("4", "HOLDFAST_ROUND"), ("1", "RANK"), ("2", "WORLD_SIZE")):
        monkeypatch.setenv(name, number)
    monkeypatch.setenv("HOLDFAST_STEP_LOG", str(tmp_path / "steps"))
    for step, loss, taken in ((7, 0.5, None), (8, None, 5)):
        Job(Environment.read(), None).step(step, samples=3, loss=loss, fingerprint=taken)
    lines = [
        json.loads(line) for line in (tmp_path / "steps/rank-1.jsonl").read_text().splitlines()
    ]
    same = {"rank": 1, "round": 4, "world_size": 2, "samples": 3}
    assert lines == [
        {"step": 7, "loss": 0.5, **same},
        {"step": 8, "loss": None, "fingerprint": 5, **same},
    ]


def test_samples_never_overflow_their_word(page: Page, writer: SlotWriter) -> None:
    """The sum stays at what the page can hold, and steps go on."""
    writer.step(1, 2**64 - 5, None)
    writer.step(2, 2**40, None)
    assert (page.read(0).step, page.read(0).samples) == (2, 2**64 - 1)
