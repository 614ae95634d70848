"""`holdfast.flash.dcp.async_save` in place of torch's: the same call, and `dcp.load` reads it."""

from __future__ import annotations

import gc
import inspect
import os
import signal
import subprocess
import sys
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint as torch_dcp

from checkpoints.forked_ranks import World, run
from checkpoints.small_models import same, trained_state
from holdfast.flash import dcp
from holdfast.flash.trainer.client import CheckpointError

pytestmark = pytest.mark.train


@pytest.fixture(autouse=True)
def _ended() -> Iterator[None]:
    """Every test ends its session."""
    yield
    dcp.close()


def _state(seed: int = 0) -> dict[str, Any]:
    model, optimizer = trained_state(seed, kind="AdamW")
    return {
        "model": model.state_dict(),
        "optimizer": optimizer.state_dict(),
        "scheduler": torch.optim.lr_scheduler.StepLR(optimizer, 2),
        "step": seed,
        "odd": [torch.arange(3), {"deep": torch.ones(2, 3, dtype=torch.bfloat16)}],
        "words": ["plain", "list"],
    }


def _read(state: dict[str, Any], path: Path) -> dict[str, Any]:
    torch_dcp.load(state, checkpoint_id=path, no_dist=True)
    return state


def test_its_signature_is_torchs() -> None:
    """Every argument of the installed torch's function is there, under the same rules."""
    theirs = inspect.signature(torch_dcp.async_save).parameters
    ours = inspect.signature(dcp.async_save).parameters
    assert list(ours) == list(theirs)
    assert [one.kind for one in ours.values()] == [one.kind for one in theirs.values()]


def test_plain_dcp_reads_what_was_saved(tmp_path: Path) -> None:
    """Tensors, Stateful objects, lists and values come back as with torch's own saving."""
    state = _state(3)
    assert dcp.async_save(state, checkpoint_id=tmp_path / "ours").result(60) is None
    torch_dcp.save(state, checkpoint_id=tmp_path / "theirs", no_dist=True)
    found, theirs = (_read(_state(1), tmp_path / name) for name in ("ours", "theirs"))
    for key in ("model", "optimizer", "odd", "step", "words"):
        assert same(found[key], theirs[key]), key
    assert found["step"] == 3
    assert found["scheduler"].state_dict() == state["scheduler"].state_dict()
    reader = torch_dcp.FileSystemReader
    ours, other = (reader(tmp_path / one).read_metadata() for one in ("ours", "theirs"))
    assert ours.state_dict_metadata.keys() == other.state_dict_metadata.keys()
    assert ours.planner_data == other.planner_data
    assert torch.equal(found["odd"][0], torch.arange(3))


def test_the_state_may_change_once_the_call_returns(tmp_path: Path) -> None:
    """Each of several saves in flight stores the state at the moment of its call."""
    values = torch.zeros(200_000)
    futures = []
    for step in range(1, 6):
        values.fill_(step)
        futures.append(dcp.async_save({"x": values, "n": step}, checkpoint_id=tmp_path / f"{step}"))
    values.fill_(-1)
    for future in futures:
        future.result(60)
    for step in range(1, 6):
        found = _read({"x": torch.empty(200_000), "n": 0}, tmp_path / f"{step}")
        assert found["n"] == step
        assert torch.equal(found["x"], torch.full((200_000,), float(step)))


def test_a_checkpoint_of_the_same_name_is_replaced_as_a_whole(tmp_path: Path) -> None:
    """Also torch's own; files of a former layout are not left beside the new ones."""
    path = tmp_path / "latest"
    path.mkdir()
    torch_dcp.save({"old": torch.ones(3)}, checkpoint_id=path, no_dist=True)
    dcp.async_save({"new": torch.ones(4)}, checkpoint_id=path).result(60)
    dcp.async_save({"new": torch.full((4,), 2.0)}, checkpoint_id=path).result(60)
    assert torch.equal(_read({"new": torch.empty(4)}, path)["new"], torch.full((4,), 2.0))
    assert sorted(one.name for one in path.iterdir()) == [
        ".metadata",
        "__0_0.distcp",
        "holdfast.json",
    ]
    assert [one.name for one in tmp_path.iterdir()] == ["latest"]


def test_a_link_is_replaced_and_not_what_it_leads_to(tmp_path: Path) -> None:
    """The checkpoint is durable then, and its future says so."""
    dcp.async_save({"x": torch.ones(3)}, checkpoint_id=tmp_path / "one").result(30)
    (tmp_path / "link").symlink_to(tmp_path / "one")
    dcp.async_save({"x": torch.zeros(3)}, checkpoint_id=tmp_path / "link").result(30)
    assert _read({"x": torch.empty(3)}, tmp_path / "link")["x"].sum() == 0
    assert _read({"x": torch.empty(3)}, tmp_path / "one")["x"].sum() == 3
    assert [path.name for path in sorted(tmp_path.iterdir())] == ["link", "one"]


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"storage_writer": object()}, "storage_writer=.*pass checkpoint_id"),
        ({"planner": object()}, "planner=.*pass the state as it is to be stored"),
        ({"async_stager": object()}, "async_stager=.*leave it out"),
        ({"use_collectives": False}, "use_collectives=False"),
        ({"checkpoint_id": None}, "checkpoint_id=None: name a directory"),
        ({"checkpoint_id": b"/tmp/one"}, "checkpoint_id=b'/tmp/one': name a directory, as text"),
        ({"checkpoint_id": 5}, "checkpoint_id=5: name a directory, as text"),
        ({"checkpoint_id": "s3://bucket/one"}, "checkpoint_id='s3://bucket/one'.*URL"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_what_cannot_be_honoured_is_refused_by_name(
    tmp_path: Path, given: dict[str, Any], said: str
) -> None:
    """Nothing is written then, and the message says what to do instead."""
    with pytest.raises(ValueError, match=said):
        dcp.async_save({}, **({"checkpoint_id": tmp_path / "one"} | given))
    assert list(tmp_path.iterdir()) == []


def test_a_directory_with_other_files_is_refused(tmp_path: Path) -> None:
    """A checkpoint replaces its directory, so nothing else may be in it."""
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(ValueError, match=r"notes\.txt.*directory of its own"):
        dcp.async_save({}, checkpoint_id=tmp_path)
    with pytest.raises(ValueError, match="is a file"):
        dcp.async_save({}, checkpoint_id=tmp_path / "notes.txt")
    assert (tmp_path / "notes.txt").read_text() == "mine"


def test_a_keeper_that_dies_ends_what_is_pending(tmp_path: Path) -> None:
    """The future fails, the next save says why, and after close() there is a new keeper."""
    state = {"x": torch.ones(1000)}
    dcp.async_save(state, checkpoint_id=tmp_path / "1").result(60)
    session = next(iter(dcp._SESSIONS.values()))
    process = session._client._process
    assert process is not None
    os.kill(process.pid, signal.SIGSTOP)
    future = dcp.async_save(state, checkpoint_id=tmp_path / "2")
    os.kill(process.pid, signal.SIGKILL)
    with pytest.raises(CheckpointError, match="the checkpoint server is gone"):
        future.result(60)
    with pytest.raises(CheckpointError):
        dcp.async_save(state, checkpoint_id=tmp_path / "3")
    dcp.close()
    dcp.async_save(state, checkpoint_id=tmp_path / "4").result(60)
    assert _read({"x": torch.empty(1000)}, tmp_path / "4")["x"].sum() == 1000


def test_an_interpreter_that_ends_waits_for_what_it_saved(tmp_path: Path) -> None:
    """Nobody asked the future; the checkpoint is there all the same."""
    code = (
        "import sys, torch; from holdfast.flash import dcp;"
        "dcp.async_save({'x': torch.ones(3_000_000)}, checkpoint_id=sys.argv[1])"
    )
    subprocess.run([sys.executable, "-W", "ignore", "-c", code, tmp_path / "x"], check=True)
    assert _read({"x": torch.empty(3_000_000)}, tmp_path / "x")["x"].sum() == 3_000_000


_UNASKED = """
import resource, sys, torch
from holdfast.flash import dcp
state, root = {"x": torch.ones(3_000_000)}, sys.argv[1]
dcp.async_save(state, checkpoint_id=f"{root}/1").result(60)
keeper = next(iter(dcp._SESSIONS.values()))._client._process.pid
resource.prlimit(keeper, resource.RLIMIT_FSIZE, (4096, resource.RLIM_INFINITY))
dcp.async_save(state, checkpoint_id=f"{root}/2")
held = dcp.async_save(state, checkpoint_id=f"{root}/3")
asked = dcp.async_save(state, checkpoint_id=f"{root}/4")
assert "File too large" in str(asked.exception(60))
"""


def test_a_failed_save_whose_future_nobody_asks_is_a_warning(tmp_path: Path) -> None:
    """The last one of a script too, whose storage is full: let go of, or held until the end."""
    done = subprocess.run(
        [sys.executable, "-c", _UNASKED, tmp_path], capture_output=True, text=True, check=True
    )
    said = [line for line in done.stderr.splitlines() if "nobody asked its future" in line]
    assert sorted(line.partition(" was not saved")[0][-2:] for line in said) == ["/2", "/3"]
    assert all("File too large" in line for line in said)


_RANKS = """
import torch, torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor
from holdfast.flash import dcp
from holdfast.flash.trainer.client import CheckpointError


def together(rank, world, folder):
    mesh = init_device_mesh("cpu", (2,))
    sharded = distribute_tensor(torch.arange(5000.0), mesh, [Shard(0)])
    whole = torch.arange(1_000_000.0).view(1000, 1000)
    before = dist.group.WORLD._get_sequence_number_for_group()
    for step in (1, 2, 3):
        state = {"sharded": sharded + 0, "whole": whole + step, "step": step, "own": rank}
        if step == 2:
            before = dist.group.WORLD._get_sequence_number_for_group()
        future = dcp.async_save(state, checkpoint_id=f"{folder}/{step}")
        done = dist.group.WORLD._get_sequence_number_for_group() - before
        print(step, "collectives", done)
        future.result(60)
    if rank == 0:
        # Some are rank 1's by name; smaller ones than 64 KiB would all be rank 0's.
        state |= {f"lonely {letter}": torch.ones(30_000) for letter in "abcdefgh"}
    future = dcp.async_save(state, checkpoint_id=f"{folder}/4")
    if rank == 0:
        try:
            future.result(60)
        except CheckpointError as error:
            print("refused:", error)
    print("over")


class Odd:
    def state_dict(self):
        raise RuntimeError("of its own")
    def load_state_dict(self, state):
        pass


def failing(rank, world, folder):
    for step in (1, 2, 3):
        state = {"whole": torch.full((2000, 1000), float(step)), "step": step}
        if rank == 0 and step == 2:
            state["odd"] = Odd()
        try:
            dcp.async_save(state, checkpoint_id=f"{folder}/{step}").result(60)
        except (RuntimeError, CheckpointError) as error:
            print("failed:", step, error)
"""


def _ranks(folder: Path, name: str) -> list[str]:
    """Run two ranks of one group to their end; return what each wrote."""
    (said,) = run(folder, _RANKS, [World(name, 2, {"folder": str(folder)})])
    return said


def test_ranks_save_together_and_ask_nobody(tmp_path: Path) -> None:
    """Shards make one checkpoint; of what all hold alike each rank writes a part.

    A tensor that only one rank has, and leaves to another, is refused by name.
    """
    said = _ranks(tmp_path, "together")
    assert [text.count("over") for text in said] == [1, 1], said
    assert all(f"{step} collectives 0" in text for text in said for step in (2, 3)), said
    empty = {"sharded": torch.empty(5000), "whole": torch.empty(1000, 1000), "step": 0, "own": -1}
    found = _read(empty, tmp_path / "3")
    assert torch.equal(found["sharded"], torch.arange(5000.0))
    assert torch.equal(found["whole"], torch.arange(1_000_000.0).view(1000, 1000) + 3)
    assert (found["step"], found["own"]) == (3, 0)
    sizes = [(tmp_path / "3" / f"__{rank}_0.distcp").stat().st_size for rank in (0, 1)]
    assert max(sizes) < 1.2 * min(sizes)
    assert "refused:" in said[0]
    assert "lonely" in said[0]
    assert "is on ranks [0] only" in said[0]


def test_a_call_that_fails_on_one_rank_mixes_no_two_states(tmp_path: Path) -> None:
    """It is a call of that rank too; the others hear of it at once, and the next one is whole."""
    said = _ranks(tmp_path, "failing")
    assert [text.count("failed:") for text in said] == [1, 1], said
    assert "failed: 2 of its own" in said[0]
    assert "failed: 2 step 2: rank 0" in said[1]
    for step in (1, 3):
        found = _read({"whole": torch.empty(2000, 1000), "step": 0}, tmp_path / str(step))
        assert torch.equal(found["whole"], torch.full((2000, 1000), float(step)))
        assert found["step"] == step
    assert not (tmp_path / "2").exists()


def test_a_copy_that_is_broken_off_takes_no_slot(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ctrl-C at each of more calls than there are slots: the next one saves."""

    def broken(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(dcp, "_SLOT_SECONDS", 5.0)
    with monkeypatch.context() as patched:
        patched.setattr("holdfast.flash.trainer.copier.Copier.copy", broken)
        for _ in range(4):
            with pytest.raises(KeyboardInterrupt):
                dcp.async_save({"x": torch.ones(9)}, checkpoint_id=tmp_path / "x")
    dcp.async_save({"x": torch.ones(9)}, checkpoint_id=tmp_path / "x").result(30)
    assert _read({"x": torch.empty(9)}, tmp_path / "x")["x"].sum() == 9


def test_a_signals_handler_within_a_call_is_refused_and_not_waited_for(tmp_path: Path) -> None:
    """It would wait for the locks of the call that it interrupts, for ever."""

    class Interrupted:
        """Its state is asked for in the middle of a call."""

        def state_dict(self) -> dict[str, int]:
            signal.raise_signal(signal.SIGUSR1)
            return {"one": 1}

        def load_state_dict(self, _: dict[str, int]) -> None:
            """Do nothing."""

    refused = []

    def handler(*_: Any) -> None:
        try:
            dcp.async_save({"x": torch.ones(9)}, checkpoint_id=tmp_path / "emergency")
        except CheckpointError as error:
            refused.append(str(error))

    before = signal.signal(signal.SIGUSR1, handler)
    try:
        dcp.async_save({"it": Interrupted()}, checkpoint_id=tmp_path / "x").result(30)
    finally:
        signal.signal(signal.SIGUSR1, before)
    (said,) = refused
    assert "have the handler set a flag" in said
    dcp.async_save({"x": torch.ones(9)}, checkpoint_id=tmp_path / "y").result(30)
    assert [path.name for path in sorted(tmp_path.iterdir())] == ["x", "y"]


def test_what_was_saved_is_let_go_once_it_is_copied(tmp_path: Path) -> None:
    """Tensors and values made for one save alone are freed when the future is done, as torch's."""

    class Counter:
        def __init__(self) -> None:
            self.tensor = torch.ones(3)

        def state_dict(self) -> dict[str, Any]:
            return {"inner": [self.tensor]}

        def load_state_dict(self, state: dict[str, Any]) -> None:
            del state

    def save(number: int) -> list[weakref.ref[Any]]:
        counter = Counter()
        state = {"gathered": torch.ones(1 << 16), "counter": counter, "held": [torch.ones(2)]}
        dcp.async_save(state, checkpoint_id=tmp_path / str(number)).result()
        return [weakref.ref(one) for one in (state["gathered"], counter.tensor, counter)]

    for number in range(2):  # the second takes over what the first has encoded
        kept = save(number)
        gc.collect()
        assert [one() for one in kept] == [None] * 3
