"""`holdfast incidents` and `holdfast incident` of a job that has ended."""

from __future__ import annotations

import json
import os
import stat
import zipfile
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from holdfast_cli.main import main
from holdfast_wire import evidence_file
from holdfast_wire import messages as wire
from jobs.ended_job import ended_job

CRASH = wire.Incident(
    id="i1.1",
    cause="WorkerCrashed",
    text="rank 3 was ended by \x1b[2Jsignal 9",
    culprit_node="1",
    culprit_rank="3",
    opened_unix=1.7e9,
    first_step_seconds=4.0,
    steps_redone=7,
    from_round=1,
    to_round=2,
)
HANG = wire.Incident(
    id="i1.2",
    cause="Hang",
    text="lock: rank 1 waits for a lock",
    culprit_rank="1",
    culprit_node="0",
    opened_unix=1.7e9 + 60,
    first_step_seconds=90.0,
    reported_only=True,
)
EVIDENCE = wire.IncidentEvidence(
    incident_id="i1.2",
    odd_ranks=(1,),
    ranks=tuple(
        wire.RankEvidence(
            rank=rank,
            pid=100 + rank,
            process_state="S",
            stack=f"  File train.py, line {rank} \x1b]0;title\x07",
            groups=(
                wire.GroupTail(group="0", sequence=9, operation="gloo:all_reduce", sizes="[[2]]"),
            ),
        )
        for rank in (0, 1)
    ),
)


@pytest.fixture
def environ(tmp_path: Path) -> dict[str, str]:
    """Return an environment in which the job "gpt" has ended, with a crash and a hang."""
    home = ended_job(tmp_path, goodput=wire.GetGoodputResponse(incidents=(CRASH, HANG)))
    directory = home.journal / evidence_file.DIRECTORY
    directory.mkdir()
    (directory / "i1.2.evidence").write_bytes(evidence_file.pack(EVIDENCE))
    return {**os.environ, "HOLDFAST_HOME": str(tmp_path)}


def _holdfast(environ: dict[str, str], *words: str) -> Result:
    return CliRunner().invoke(main, words, env=environ)


def test_the_list_has_a_line_for_each(environ: dict[str, str]) -> None:
    """With culprit, duration, lost steps, and whether stacks are kept; no escape sequences."""
    done = _holdfast(environ, "incidents", "gpt")
    header, crash, hang = done.stdout.splitlines()
    assert header.split()[:3] == ["ID", "TIME", "CAUSE"]
    assert crash.split()[4:13] == ["rank", "3", "on", "node", "1", "4.0", "s", "7", "-"]
    assert crash.endswith("rank 3 was ended by signal 9")
    assert hang.split()[4:13] == ["rank", "1", "on", "node", "0", "1", "min", "30", "s"]
    assert hang.split()[13:15] == ["0", "yes"]
    listed = json.loads(_holdfast(environ, "incidents", "gpt", "-o", "json").stdout)
    assert [one["id"] for one in listed["incidents"]] == ["i1.1", "i1.2"]
    assert listed["with_evidence"] == ["i1.2"]


def test_a_hang_is_shown_with_its_ranks_and_the_odd_stack(environ: dict[str, str]) -> None:
    """The stacks of the others are a matter for a file."""
    shown = _holdfast(environ, "incident", "gpt", "i1.2").stdout
    assert "Where       rank 1 on node 0" in shown
    assert "File train.py, line 1" in shown
    assert "File train.py, line 0" not in shown
    assert "Stacks of 1 other rank: --save FILE.zip" in shown
    assert "gloo:all_reduce [[2]] number 9 of 0" in shown
    assert "\x1b" not in shown


def test_an_incident_without_evidence_says_so(environ: dict[str, str]) -> None:
    """A crash has no stacks."""
    shown = _holdfast(environ, "incident", "gpt", "i1.1").stdout
    assert "Steps lost  7" in shown
    assert "Stacks      none: " in shown


def test_a_file_has_all_of_it_and_nothing_is_overwritten(
    environ: dict[str, str], tmp_path: Path
) -> None:
    """Names are made from rank numbers only; the file is its owner's."""
    path = tmp_path / "hang.zip"
    done = _holdfast(environ, "incident", "gpt", "i1.2", "--save", str(path))
    assert done.stdout == f"{path} has incident i1.2 with 2 stacks\n"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    with zipfile.ZipFile(path) as zipped:
        assert sorted(zipped.namelist()) == [
            "incident.json",
            "recorder/rank-00000.json",
            "recorder/rank-00001.json",
            "stacks/rank-00000.txt",
            "stacks/rank-00001.txt",
        ]
        whole = json.loads(zipped.read("incident.json"))
        assert whole["incident"]["cause"] == "Hang"
        assert json.loads(zipped.read("recorder/rank-00001.json"))[0]["sequence"] == 9
        assert zipped.read("stacks/rank-00001.txt") == b"  File train.py, line 1\n"
    before = path.read_bytes()
    again = _holdfast(environ, "incident", "gpt", "i1.2", "--save", str(path))
    assert again.exit_code == 2
    assert f"--save is {path}, which exists and stays as it is" in again.stderr
    assert path.read_bytes() == before


def test_a_file_that_cannot_be_made_is_named_with_a_remedy(
    environ: dict[str, str], tmp_path: Path
) -> None:
    """As for a directory that does not exist."""
    path = tmp_path / "absent" / "hang.zip"
    done = _holdfast(environ, "incident", "gpt", "i1.2", "--save", str(path))
    assert (done.exit_code, "name a file in a directory that exists" in done.stderr) == (2, True)


@pytest.mark.parametrize("name", ["i9.9", "../../job", ""])
def test_an_id_that_no_incident_has_is_refused(environ: dict[str, str], name: str) -> None:
    """The text names the id, and where the ids are."""
    done = _holdfast(environ, "incident", "gpt", name)
    assert done.exit_code == 5
    assert f"incident {name!r} is none of the job's" in done.stderr


def test_damaged_evidence_leaves_the_rest(environ: dict[str, str]) -> None:
    """The incident is shown, with the file and the remedy."""
    file = Path(environ["HOLDFAST_HOME"]) / "jobs/gpt/journal/evidence/i1.2.evidence"
    file.write_bytes(b"?")
    shown = _holdfast(environ, "incident", "gpt", "i1.2")
    assert shown.exit_code == 0
    assert "i1.2.evidence cannot be used: it is damaged" in shown.stdout
