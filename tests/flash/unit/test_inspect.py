"""Report on a directory of checkpoints: its contents, and whether it is whole."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from checkpoints.sample_shards import begin, sample_step, save
from holdfast.flash.storage.filesystem import Disk
from holdfast.flash.tools.inspect import main

Print = pytest.CaptureFixture[str]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A directory with the steps 10 and 20 of two ranks, and one that was never finished."""
    disk, root = Disk(), str(tmp_path / "ck")
    disk.make_dir(root)
    for step in (10, 20, 30):
        (save if step < 30 else begin)(disk, root, sample_step(step, random.Random(step)))
    return tmp_path / "ck"


@pytest.mark.parametrize("tool", ["inspect", "verify"])
def test_a_key_of_a_step_is_refused(folder: Path, capsys: Print, tool: str) -> None:
    """The parts of a step have fixed names; a key that has no effect would say that it had one."""
    assert main([tool, str(folder), "--model", "net"]) == 2
    assert "leave out --model and --optimizer" in capsys.readouterr().err


def test_each_step_is_a_line(folder: Path, capsys: Print) -> None:
    """With who saved it and how much it is; what was not finished is no step."""
    assert main(["inspect", str(folder)]) == 0
    first, second = capsys.readouterr().out.splitlines()
    assert f"{folder}/step_10: step 10, saved by 2 ranks" in first
    assert "step_20" in second
    assert "1 tensor, 2 other values" in second


def test_of_one_step_every_item_is_shown(folder: Path, capsys: Print) -> None:
    """With its type, its whole shape, its size over all ranks, and the ranks that have a part."""
    assert main(["inspect", str(folder / "step_10")]) == 0
    rows = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert ["model.weight", "float32", "200x30", "23.4", "KiB", "0,1"] in rows
    assert main(["inspect", str(folder / "step_10"), "--json"]) == 0
    [step] = json.loads(capsys.readouterr().out)
    weight = next(item for item in step["items"] if item["name"] == "model.weight")
    assert weight["shape"] == [200, 30]
    assert weight["bytes"] == 200 * 30 * 4


def test_whole_steps_verify(folder: Path, capsys: Print) -> None:
    """Exit code 0, and each says so."""
    assert main(["verify", str(folder)]) == 0
    assert capsys.readouterr().out.count("every hash is right") == 2


def _flip(file: Path) -> None:
    content = bytearray(file.read_bytes())
    content[min(1000, len(content) - 1)] ^= 1
    file.write_bytes(content)


def _shorten(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:-1])


@pytest.mark.parametrize("name", ["__1_0.distcp", ".metadata"])
@pytest.mark.parametrize("damage", [_flip, _shorten, Path.unlink])
def test_a_damaged_step_is_named_beside_whole_ones(
    folder: Path, name: str, damage: Callable[[Path], None], capsys: Print
) -> None:
    """By its file, also `.metadata`, which has no hash and only torch reads. Exit code 7."""
    damage(folder / "step_10" / name)
    assert main(["verify", str(folder)]) == 7
    wrong, right = capsys.readouterr().out.splitlines()
    assert wrong.startswith(f"{folder}/step_10: NOT WHOLE: ")
    assert f"{folder}/step_10/{name}" in wrong
    assert "every hash is right" in right


def test_a_directory_of_steps_may_be_named_like_one_and_have_a_slash(
    folder: Path, tmp_path: Path, capsys: Print
) -> None:
    """A directory's contents tell what it is. An empty `step_6` is a step that is not whole."""
    root = folder.rename(tmp_path / "step_5")
    assert main(["verify", f"{root}/"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.partition(": ")[0] for line in lines] == [f"{root}/step_10", f"{root}/step_20"]
    (tmp_path / "step_6").mkdir()
    assert main(["verify", str(tmp_path / "step_6")]) == 7
    assert "step_6: NOT WHOLE" in capsys.readouterr().out


def test_a_flipped_bit_is_seen_by_verify_only(folder: Path) -> None:
    """Inspect reads no data, and does not say that any is right."""
    _flip(folder / "step_10" / "__1_0.distcp")
    assert main(["inspect", str(folder)]) == 0


def test_what_is_no_checkpoint_is_said_with_what_to_do(
    folder: Path, tmp_path: Path, capsys: Print
) -> None:
    """Nothing there, a file, an empty directory, only attempts: exit code 2; a damaged one: 7."""
    (tmp_path / "file").write_text("")
    (tmp_path / "empty").mkdir()
    theirs = tmp_path / "above" / "theirs"
    theirs.mkdir(parents=True)
    (theirs / ".metadata").write_text("")
    (tmp_path / "begun").mkdir()
    [begun] = folder.glob("step_30.tmp.*")
    begun.rename(tmp_path / "begun" / begun.name)
    said = {
        "nothing": "does not exist: name a step's directory",
        "file": "is empty: copy it again",
        "empty": "holds no checkpoint: no step_N directory",
        "begun": "only 1 that were never finished",
        "above": "no step_N directory; theirs in it has a checkpoint",
    }
    for name, text in said.items():
        assert main(["verify", str(tmp_path / name)]) == 2
        assert text in capsys.readouterr().err, name
    assert main(["verify", str(theirs)]) == 7
    assert f"{theirs}/.metadata cannot be read as data" in capsys.readouterr().err


@pytest.mark.parametrize("tool", ["inspect", "verify"])
def test_the_command_line_passes_words_and_exit_code_on(folder: Path, tool: str) -> None:
    """`holdfast checkpoint inspect|verify PATH -o json`."""
    (folder / "step_10" / "__1_0.distcp").unlink()
    command = [sys.executable, "-m", "holdfast_cli.main", "checkpoint", tool, str(folder)]
    done = subprocess.run(
        [*command, "-o", "json"], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 7, done.stderr
    wrong, right = json.loads(done.stdout)
    assert "__1_0.distcp" in wrong["wrong"]
    assert (right["step"], right["ranks"]) == (20, 2)
