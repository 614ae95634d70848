"""Files of torch and safetensors, to steps and back; what is damaged or unknown is named."""

from __future__ import annotations

import contextlib
import json
import os
import pickle
import random
import shutil
import signal
import struct
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint as dcp
from safetensors.torch import load_file, save_file

from foreign_checkpoints.conversions import Print, converted, refused
from foreign_checkpoints.corruption import damage
from holdfast.flash.tools import convert, diff, inspect
from holdfast.flash.tools.diff import Contents
from holdfast.flash.tools.formats import conversion
from holdfast.flash.tools.formats import safetensors as ours
from holdfast.flash.tools.formats.pickles import Pickles
from holdfast.flash.tools.printing import Bar
from house.extended import usual
from house.patience import patience

pytestmark = [pytest.mark.train, pytest.mark.timeout(120)]
MORE = pytest.mark.extended(
    "other formats of the same test",
    held_by=[
        "flash/process/test_foreign_formats.py::test_every_conversion_tells_of_every_byte",
        "flash/process/test_foreign_formats.py::test_ctrl_c_leaves_nothing_that_looks_whole",
    ],
)


def _state() -> dict[str, Any]:
    """A training state with odd dtypes, shapes, keys and values."""
    torch.manual_seed(4)
    weights = {
        "w": torch.randn(6, 5),
        "half": torch.randn(7, dtype=torch.bfloat16),
        "number": torch.tensor(3, dtype=torch.int64),
        "none": torch.empty(0, 3),
        "mask": torch.tensor([True, False]),
        "slice": torch.arange(20.0).view(4, 5)[:, 1:3],
    }
    groups = {"0": {"lr": 0.1, "betas": (0.9, float("inf")), "params": ["w"]}}
    moments = {"state": {"w": {"exp_avg": torch.randn(6, 5), "step": torch.tensor(2.0)}}}
    return {
        "model": weights,
        "optimizer": {**moments, "param_groups": groups},
        "extra": {"data": {1: [2, (3, None)], "t": torch.ones(3), "b": b"\x00\xff"}},
    }


def _torch_file(folder: Path) -> Path:
    torch.save(_state(), folder / "state.pt")
    return folder / "state.pt"


def _step(folder: Path) -> Path:
    return converted(_torch_file(folder), folder / "ck", "--step", "3")


def _dcp(folder: Path) -> tuple[Path, Path]:
    """Return a directory of torch's, and its data file."""
    with warnings.catch_warnings(action="ignore"):
        dcp.save(_state(), checkpoint_id=folder / "dcp", no_dist=True)
    (file,) = (folder / "dcp").glob("*.distcp")
    return folder / "dcp", file


def test_a_state_goes_through_safetensors_unchanged(tmp_path: Path) -> None:
    """Weights for others in model.safetensors; all else beside it; back bit for bit."""
    step = _step(tmp_path)
    made = converted(step, tmp_path / "hf", "--to", "safetensors")
    assert sorted(path.name for path in made.iterdir()) == [
        "model.safetensors",
        "training_state.safetensors",
    ]
    again = converted(made, tmp_path / "again", "--step", "3")
    assert diff.main([str(step), str(again)]) == 0
    for name, tensor in load_file(made / "model.safetensors").items():
        assert tensor.equal(Contents(str(step)).tensor(f"model.{name}"))
    assert len(load_file(made / "model.safetensors")) == len(_state()["model"])


def test_what_safetensors_itself_writes_is_read(tmp_path: Path) -> None:
    """One file, and a directory with Hugging Face's index; there are no checksums, it says."""
    weights = {name: one.contiguous() for name, one in _state()["model"].items()}
    save_file(weights, tmp_path / "one.safetensors")
    hf = tmp_path / "hf"
    _sharded(hf, weights)
    steps = [
        converted(source, tmp_path / f"ck{at}", "--step", "1")
        for at, source in enumerate((tmp_path / "one.safetensors", hf))
    ]
    assert diff.main([str(step) for step in steps]) == 0
    for name, tensor in weights.items():
        assert Contents(str(steps[1])).tensor(f"model.{name}").equal(tensor)


def _sharded(folder: Path, weights: dict[str, Any]) -> None:
    """Write a directory as Hugging Face's libraries do."""
    folder.mkdir()
    names = sorted(weights)
    halves = {"model-00001-of-00002": names[:3], "model-00002-of-00002": names[3:]}
    index: dict[str, str] = {}
    for file, half in halves.items():
        save_file({name: weights[name] for name in half}, folder / f"{file}.safetensors")
        index |= dict.fromkeys(half, f"{file}.safetensors")
    text = json.dumps({"metadata": {}, "weight_map": index})
    (folder / "model.safetensors.index.json").write_text(text)


def test_a_large_model_is_written_in_several_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With an index that names each tensor's file; the largest tensor has one of its own."""
    step = _step(tmp_path)
    monkeypatch.setattr(ours, "SHARD_BYTES", 100)
    made = converted(step, tmp_path / "hf", "--to", "safetensors", "--model-only")
    index = json.loads((made / "model.safetensors.index.json").read_text())
    assert index["weight_map"].keys() == _state()["model"].keys()
    assert len(set(index["weight_map"].values())) > 1
    again = converted(made, tmp_path / "again", "--step", "3")
    found, origin = Contents(str(again)), Contents(str(step))
    assert all(found.tensor(name).equal(origin.tensor(name)) for name in found.forms)


def test_what_is_wrong_with_safetensors_is_named(tmp_path: Path, capsys: Print) -> None:
    """A missing file, a tensor in another file than the index says, a cut file, a long header."""
    weights = {name: one.contiguous() for name, one in _state()["model"].items()}
    hf, out = tmp_path / "hf", tmp_path / "out"
    _sharded(hf, weights)
    second = hf / "model-00002-of-00002.safetensors"
    content = second.read_bytes()
    second.write_bytes(content[:-1])
    refused(capsys, hf, out, str(second), "bytes of tensors, not")
    second.write_bytes(struct.pack("<Q", 2**40) + content[8:])
    refused(capsys, hf, out, str(second), "a header of 1099511627776 bytes")
    second.unlink()
    refused(capsys, hf, out, f"{second} is missing", "lists it")
    second.write_bytes(content)
    index = hf / "model.safetensors.index.json"
    text = index.read_text()
    index.write_text(text.replace("00002-of-00002", "00001-of-00002", 1))
    refused(capsys, hf, out, str(index), "by it, and in model-00002")
    index.write_text(text.replace('"model-00002-of', '"../model-00002-of', 1))
    refused(capsys, hf, out, "only files beside it are read")


def test_a_missing_or_damaged_file_of_torch_is_named(tmp_path: Path, capsys: Print) -> None:
    """With the first item that `.metadata` says lies in it."""
    (source, file), out = _dcp(tmp_path), tmp_path / "out"
    content, metadata = file.read_bytes(), source / ".metadata"
    file.write_bytes(b"x" * len(content))
    refused(capsys, source, out, str(file), "is no archive of")
    file.write_bytes(content[: len(content) // 2])
    refused(capsys, source, out, str(file))
    file.unlink()
    refused(capsys, source, out, f"{file} is missing", f"{metadata} says that")
    metadata.write_bytes(metadata.read_bytes()[:100])
    refused(capsys, source, out, str(metadata))
    metadata.unlink()
    refused(capsys, source, out, f"{source} has none of")


def test_an_item_whose_length_covers_others_is_refused(tmp_path: Path, capsys: Print) -> None:
    """An archive is found from its end: the last value would be read under the first one's name."""
    source, file = _dcp(tmp_path)
    metadata = pickle.loads((source / ".metadata").read_bytes())  # noqa: S301 - made above
    values = [key for key in metadata.storage_data if key.fqn.startswith("optimizer.param_groups")]
    first = metadata.storage_data[values[0]]
    placed = (metadata.storage_data[key] for key in values)
    first.length = max(one.offset + one.length for one in placed) - first.offset
    (source / ".metadata").write_bytes(pickle.dumps(metadata))
    refused(capsys, source, tmp_path / "out", values[0].fqn, f"share bytes of {file}")


def test_an_item_outside_its_file_is_refused(tmp_path: Path, capsys: Print) -> None:
    """As what a flipped bit of `.metadata` says; found by a random one, which met a traceback."""
    source, file = _dcp(tmp_path)
    metadata = pickle.loads((source / ".metadata").read_bytes())  # noqa: S301 - made above
    key, place = next(iter(metadata.storage_data.items()))
    right, size = place.offset, file.stat().st_size
    for wrong, texts in (
        (right - 2**31, (key.fqn, f"{source}/.metadata is damaged")),
        (2**70, (f"{file}: {size} bytes, not the {2**70 + 4} that are due",)),
    ):
        place.offset = wrong
        (source / ".metadata").write_bytes(pickle.dumps(metadata))
        refused(capsys, source, tmp_path / "out", *texts)


def test_an_unknown_or_ambiguous_path_lists_what_was_looked_for(
    tmp_path: Path, capsys: Print
) -> None:
    """And a conversion to what it is already, or over something, is refused."""
    (tmp_path / "empty").mkdir()
    out = tmp_path / "out"
    refused(
        capsys, tmp_path / "empty", out, "holdfast.json", "zero/optimizer_state.pt", ".metadata"
    )
    refused(capsys, tmp_path / "missing", out, "No such file")
    both = tmp_path / "both"
    both.mkdir()
    (both / ".metadata").touch()
    (both / "x.safetensors").touch()
    refused(capsys, both, out, ".metadata (dcp) and *.safetensors (safetensors)", "another save")
    step = _step(tmp_path)
    refused(capsys, step, out, "is Holdfast's own", "--to safetensors")
    for to in ("safetensors", "deepspeed-universal"):
        assert convert.main(["convert", str(step), str(both), "--to", to]) == 2
        assert "is there already" in capsys.readouterr().err
    assert convert.main(["convert", str(tmp_path / "state.pt"), str(out)]) == 2
    assert "name one with --step" in capsys.readouterr().err


class _Evil:
    """Would run a program, were it unpickled."""

    def __init__(self, call: Callable[..., Any], *args: Any) -> None:
        self._made = call, args

    def __reduce__(self) -> Any:
        return self._made


@pytest.mark.parametrize("call", [os.system, eval, getattr, __import__, shutil.rmtree])
def test_no_name_of_a_pickle_is_run(tmp_path: Path, capsys: Print, call: Any) -> None:
    """In a file of torch.save, and in a `.metadata`; the error names it."""
    torch.save({"w": _Evil(call, f"touch {tmp_path}/run")}, tmp_path / "evil.pt")
    name = "is not among the names that are read"
    refused(capsys, tmp_path / "evil.pt", tmp_path / "out", "evil.pt", name)
    (tmp_path / "dcp").mkdir()
    (tmp_path / "dcp" / ".metadata").write_bytes(pickle.dumps(_Evil(call, "1")))
    refused(capsys, tmp_path / "dcp", tmp_path / "out", ".metadata", name)
    assert not (tmp_path / "run").exists()


def test_the_process_that_unpickles_can_open_nothing() -> None:
    """Neither a file nor a socket: the limit of open files is 0 before the first byte is read."""
    from holdfast.flash.tools.formats import pickle_child

    program = (
        "import sys, socket; sys.path.insert(0, sys.argv[1]); import pickle_child\n"
        "pickle_child._give_up_rights()\n"
        "for call in (lambda: open('/etc/hostname'), socket.socket):\n"
        "    try:\n        call()\n    except OSError as error:\n        print(error.errno)\n"
    )
    folder = str(Path(pickle_child.__file__).parent)
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", program, folder],
        capture_output=True,
        text=True,
        check=False,
        timeout=30 * patience(),
    )
    assert done.stdout.split() == ["24", "24"], done.stderr


def _sources(folder: Path) -> list[Path]:
    """Make one checkpoint of every format that torch, safetensors and we write."""
    step, _ = _step(folder), _dcp(folder)
    converted(step, folder / "hf", "--to", "safetensors")
    converted(step, folder / "universal", "--to", "deepspeed-universal", "--model-only")
    return [folder / name for name in ("state.pt", "dcp", "hf", "universal", "ck/step_3")]


@pytest.mark.slow
def test_no_corruption_is_read_as_something_else(tmp_path: Path) -> None:
    """Flipped bits, cuts and overwritten ranges: refused by the file's name, or without effect."""
    seed = random.randrange(10**6)
    refused = damage(_sources(tmp_path), 350, seed)
    assert refused > 200, f"seed {seed}: {refused} of 350 were refused"


_ALONE = """
import torch
(own,) = [line.split()[1] for line in open("/proc/self/status") if line.startswith("VmHWM")]
print(own)
"""
_PEAK = """
import sys, threading, time
from pathlib import Path
from holdfast.flash.tools import convert

def of_children():
    global most
    while True:
        for pid in Path("/proc/self/task").glob("*/children"):
            for child in pid.read_text().split():
                try:
                    most = max(most, int(Path(f"/proc/{child}/statm").read_text().split()[1]) * 4)
                except OSError:
                    pass
        time.sleep(0.01)

most = 0
threading.Thread(target=of_children, daemon=True).start()
code = convert.main(sys.argv[1:])
(own,) = [line.split()[1] for line in open("/proc/self/status") if line.startswith("VmHWM")]
print(code, own, most)
"""


@pytest.mark.slow
@pytest.mark.timeout(
    300
)  # seven processes with deadlines of their own, each of which imports torch
def test_memory_holds_two_of_the_largest_tensors_at_most(tmp_path: Path) -> None:
    """Through every format: 440 MB, the largest 80 MB; beside what an import of torch takes."""
    size = 20_000_000
    weights = {f"w{number}": torch.randn(size) for number in range(3)}
    weights |= {f"small.{number}": torch.randn(size // 20) for number in range(50)}
    torch.save(weights, tmp_path / "state.pt")
    del weights
    command = [sys.executable, "-c", _ALONE]
    done = subprocess.run(
        command, capture_output=True, text=True, check=True, timeout=60 * patience()
    )
    alone = int(done.stdout)
    steps = [
        ("state.pt", "ck", "--step", "1"),
        ("ck/step_1", "hf", "--to", "safetensors"),
        ("hf", "ck2", "--step", "1"),
        ("ck/step_1", "universal", "--to", "deepspeed-universal"),
        ("universal", "ck3", "--step", "1"),
        ("ck/step_1", "again.pt", "--to", "torch"),
    ]
    for source, target, *more in steps:
        words = ["convert", str(tmp_path / source), str(tmp_path / target), *more]
        done = subprocess.run(
            [sys.executable, "-c", _PEAK, *words],
            capture_output=True,
            text=True,
            check=True,
            timeout=100 * patience(),
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )
        code, own, child = map(int, done.stdout.split()[-3:])
        assert code == 0
        peak = (own - alone) * 1024
        print(f"{source} to {target}: {peak / 1e6:.0f} MB above an import of torch")
        assert peak <= 1.5 * 4 * size + 100e6
        assert child <= alone


def test_a_bar_is_drawn_on_a_terminal_and_lines_in_a_log(tmp_path: Path) -> None:
    """The bar over itself, up to 100 %; a line when some seconds have passed, else none."""
    import pty

    master, slave = pty.openpty()
    with os.fdopen(slave, "w") as terminal, Bar(2 * 2**20, terminal) as bar:
        bar(2**20)
        bar(2**20)
    text = ""
    with contextlib.suppress(OSError):  # EIO: the terminal is closed, and all of it was read
        while True:
            text += os.read(master, 4096).decode()
    os.close(master)
    assert text.count("\r[") == 2
    assert " 100% 2 of 2 MiB" in text
    for seconds, lines in ((60.0, ""), (0.0, "holdfast: 50% 1 of 2 MiB\n")):
        with (tmp_path / "log").open("w") as file, Bar(2 * 2**20, file, seconds) as bar:
            bar(2**20)
        assert (tmp_path / "log").read_text() == lines


@pytest.mark.parametrize(
    "to", usual(conversion.TARGETS, "holdfast", "deepspeed-universal", more=MORE)
)
def test_every_conversion_tells_of_every_byte(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, to: str
) -> None:
    """The bar ends at 100 %, not before and not behind."""
    told = list[int]()

    class Told(Bar):
        def __call__(self, more: int) -> None:
            told.append(more)

    file = _torch_file(tmp_path)
    monkeypatch.setattr(conversion, "Bar", Told)
    conversion.convert(str(file), str(tmp_path / "out"), to, step=1, model=to.startswith("deep"))
    with Pickles() as pickles:
        found = conversion.open_checkpoint(str(file), pickles, model=to.startswith("deep"))
    assert sum(told) == found.bytes
    assert len(told) > 2


def _interrupted(words: Sequence[str], is_time: Callable[[int], bool]) -> str:
    """Send Ctrl-C to all processes of a command, as a terminal does; return what it says."""
    command = [sys.executable, "-m", "holdfast_cli.main", "checkpoint", *words]
    process = subprocess.Popen(command, start_new_session=True, stderr=subprocess.PIPE, text=True)
    while process.poll() is None and not is_time(process.pid):
        time.sleep(0.002)
    assert process.poll() is None, "it was done before it was interrupted"
    os.killpg(process.pid, signal.SIGINT)
    _, error = process.communicate(timeout=30 * patience())
    assert process.returncode == 130, error
    assert "Traceback" not in error
    return error


@pytest.mark.parametrize(
    "to",
    usual(
        dict.fromkeys(to.removesuffix("-0.3") for to in conversion.TARGETS),
        "holdfast",
        "deepspeed-universal",
        more=MORE,
    ),
)
def test_ctrl_c_leaves_nothing_that_looks_whole(tmp_path: Path, to: str) -> None:
    """In the middle of the writing."""
    weights = {f"w{number}": torch.zeros(8_000_000) for number in range(12)}
    torch.save(weights, tmp_path / "state.pt")
    rest = sorted([*tmp_path.iterdir()])
    words = [str(tmp_path / "state.pt"), str(tmp_path / "out"), "--to", to, "--step", "1"]
    error = _interrupted(["convert", *words], lambda _: _begun(tmp_path, 4 * 16_000_000))
    assert "interrupted" in error
    assert sorted([*tmp_path.iterdir()]) == rest


def test_ctrl_c_ends_a_check_in_one_line(tmp_path: Path) -> None:
    """`verify` reads for long; it ends with 130 and without a traceback."""
    torch.save({f"w{number}": torch.zeros(30_000_000) for number in range(4)}, tmp_path / "s.pt")
    error = _interrupted(["verify", str(tmp_path / "s.pt")], lambda pid: _reads(pid, "s.pt"))
    assert error.endswith("holdfast: interrupted\n")


def _reads(parent: int, name: str) -> bool:
    """Tell whether a child of a process has a file open."""
    with contextlib.suppress(OSError):
        for child in Path(f"/proc/{parent}/task/{parent}/children").read_text().split():
            for link in Path(f"/proc/{child}/fd").iterdir():
                with contextlib.suppress(OSError):
                    if link.readlink().name == name:
                        return True
    return False


def _begun(folder: Path, size: int) -> bool:
    """Tell whether something beside the source has a size."""
    found = 0
    for path in folder.rglob("*"):
        with contextlib.suppress(OSError):
            found += 0 if path.name == "state.pt" or path.is_dir() else path.stat().st_size
    return found > size


def test_inspect_and_verify_read_files_of_others(tmp_path: Path, capsys: Print) -> None:
    """As text and as JSON; verify ends with 7 when a checksum differs."""
    file = _torch_file(tmp_path)
    assert inspect.main(["inspect", str(file), "--json"]) == 0
    (found,) = json.loads(capsys.readouterr().out)
    assert (found["format"], found["tensors"], found["parallel"]) == ("torch", 8, {})
    assert inspect.main(["verify", str(file)]) == 0
    content = bytearray(file.read_bytes())
    at = content.index(_state()["model"]["w"].numpy().tobytes())
    content[at + 3] ^= 1
    file.write_bytes(bytes(content))
    assert inspect.main(["verify", str(file)]) == 7
    assert "differs from its checksum" in capsys.readouterr().err
