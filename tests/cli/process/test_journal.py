"""`holdfast journal` and `holdfast replay`, as a person runs them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner

from holdfast_cli.journal import FACTS
from holdfast_cli.main import main
from holdfast_master.instructions import Fact
from holdfast_master.journal.segments import segment_path
from house.patience import patience
from house.programs import script
from jobs.ended_job import recorded_home
from masters.journals import written
from simulation.steered.job import SteeredJob, job_spec


@pytest.fixture(scope="module")
def state_root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A machine with one job, whose journal tells of a crash."""
    root = tmp_path_factory.mktemp("home")
    simulated = SteeredJob(job_spec(replicas=3), seed=4)
    agents = simulated.add_agents(3)
    simulated.run_until("TRAINING")
    agents[1].crash()
    simulated.run(40)
    written(recorded_home(root).journal, simulated.records).close()
    return root


Holdfast = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def holdfast(state_root: Path, capfd: pytest.CaptureFixture[str]) -> Holdfast:
    """Return what runs the command in this process; it starts the journal's reader itself."""

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        capfd.readouterr()
        done = CliRunner().invoke(main, arguments, env={"HOLDFAST_HOME": str(state_root)})
        out, err = capfd.readouterr()
        return subprocess.CompletedProcess(
            arguments, done.exit_code, done.stdout + out, done.stderr + err
        )

    return run


def test_show_prints_each_fact_with_its_reason(holdfast: Holdfast) -> None:
    """In order, in words; as JSON the fields by their names."""
    shown = holdfast("journal", "show", "gpt")
    assert shown.returncode == 0, shown.stderr
    lines = shown.stdout.splitlines()
    assert [int(line.split()[0]) for line in lines] == list(range(1, len(lines) + 1))
    assert "begins epoch 1" in lines[0]
    assert any("WorldDecided" in line and "of nodes 0,1,2" in line for line in lines)
    as_json = holdfast("journal", "show", "gpt", "-o", "json").stdout.splitlines()
    facts = [json.loads(line) for line in as_json]
    assert [fact["sequence"] for fact in facts] == list(range(1, len(lines) + 1))
    assert facts[0]["fact"]["kind"] == "SegmentOpened"


def test_show_filters_by_kind_round_incident_and_sequence(holdfast: Holdfast) -> None:
    """Each filter alone, and two together."""

    def shown(*filters: str) -> list[dict[str, object]]:
        done = holdfast("journal", "show", "gpt", "-o", "json", *filters)
        assert done.returncode == 0, done.stderr
        return [json.loads(line) for line in done.stdout.splitlines()]

    incidents = shown("--kind", "Incident")
    fact = incidents[0]["fact"]
    assert isinstance(fact, dict)
    assert {item["fact"]["kind"] for item in incidents} == {"Incident"}  # type: ignore[index]
    mine = shown("--incident", fact["id"])
    assert len(mine) > len(incidents)
    first = int(str(mine[0]["sequence"]))
    assert shown("--from", str(first), "--to", str(first)) == [mine[0]]
    rounds = shown("--round", "1", "--kind", "WorldEnded")
    assert len(rounds) == 1


def test_verify_says_what_each_file_holds_and_ends_with_its_verdict(
    holdfast: Holdfast, state_root: Path, tmp_path: Path
) -> None:
    """0 intact, 6 damaged and nothing lost, 7 lost; a directory may be named instead of a job."""
    whole = holdfast("journal", "verify", "gpt")
    assert (whole.returncode, "verdict: intact" in whole.stdout) == (0, True)
    data = segment_path(state_root / "jobs" / "gpt" / "journal", 1).read_bytes()
    copied = segment_path(tmp_path, 1)
    (tmp_path / "notes.txt").write_text("mine")
    copied.write_bytes(data[:-3])
    torn = holdfast("journal", "verify", str(tmp_path))
    assert (torn.returncode, "nothing is lost" in torn.stdout) == (6, True)
    assert "foreign" in torn.stdout
    copied.write_bytes(data[:2000] + b"\0" + data[2001:])
    shown = holdfast("journal", "show", str(tmp_path))
    assert (shown.returncode, "damaged there" in shown.stderr) == (0, True)
    lost = holdfast("journal", "verify", str(tmp_path), "-o", "json")
    assert lost.returncode == 7
    report = json.loads(lost.stdout)
    assert report["verdict"] == "LOST"
    assert "damaged there" in report["files"][0]["damage"]


def test_replay_without_inputs_shows_the_facts_and_says_so(holdfast: Holdfast) -> None:
    """Nothing is claimed that was not decided again."""
    done = holdfast("replay", "gpt", "--from", "5")
    assert done.returncode == 0, done.stderr
    assert "nothing was decided again" in done.stdout
    assert done.stdout.startswith("       5  ")


@pytest.mark.parametrize(
    ("arguments", "code", "text"),
    [
        (("journal", "verify", "nobody"), 3, "known jobs: gpt"),
        (("journal", "show", "./"), 2, "holds no journal"),
        (("replay", "gpt", "--incident", "no"), 2, "no incident 'no'"),
        (("journal", "show", "gpt", "--incident", "no"), 2, "no incident 'no'; known: i"),
        (("journal", "show", "gpt", "--kind", "Nonsense"), 2, "'WorldDecided'"),
    ],
    ids=["unknown job", "no journal", "unknown incident", "nothing to show", "unknown kind"],
)
def test_what_cannot_be_is_said_with_the_remedy(
    holdfast: Holdfast, arguments: tuple[str, ...], code: int, text: str
) -> None:
    """One line on standard error, and the code of the table."""
    done = holdfast(*arguments)
    assert (done.returncode, text in done.stderr) == (code, True), done.stderr


def test_a_reader_that_has_enough_is_no_error(state_root: Path) -> None:
    """`holdfast journal show JOB | head -1` ends quietly."""
    command = f"{sys.executable} -m holdfast_cli.main journal show gpt | head -1"
    environ = {**os.environ, "HOLDFAST_HOME": str(state_root)}
    done = subprocess.run(
        ["bash", "-c", command],
        capture_output=True,
        text=True,
        timeout=60 * patience(),
        check=True,
        env=environ,
    )
    assert (len(done.stdout.splitlines()), done.stderr) == (1, "")


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("holdfast journal verify g", "gpt"),
        ("holdfast replay g", "gpt"),
        ("holdfast journal show gpt --kind World", "WorldDecided"),
        ("holdfast jour", "journal"),
    ],
)
def test_the_shell_completes_jobs_and_kinds(state_root: Path, words: str, expected: str) -> None:
    """As for the other commands."""
    count = str(len(words.split()) - 1)
    completing = {"_HOLDFAST_COMPLETE": "bash_complete", "COMP_WORDS": words, "COMP_CWORD": count}
    code = "from holdfast_cli.main import main; main(prog_name='holdfast')"
    done = script(code, env={**os.environ, "HOLDFAST_HOME": str(state_root), **completing})
    assert expected in done.stdout


def test_the_kinds_that_can_be_asked_for_are_the_masters() -> None:
    """The command line may not import the master, so a test compares."""
    known = {kind.__name__ for kind in Fact.__args__}
    assert known - {"JobFolded"} == set(FACTS)
