"""Copies from GPUs: the order of the calls against a stand-in for torch.cuda, and on a real GPU.

The stand-in shows only in which order CUDA would be called, not that CUDA does what is asked.
"""

from __future__ import annotations

import contextlib
import gc
import os
import threading
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint as dcp

import holdfast
from checkpoints.small_models import (
    assert_loads,
    load,
    opened,
    same,
    save,
    state_of,
    train,
    trained_state,
)
from holdfast.flash.memory.slots import SlotState
from holdfast.flash.trainer import copier, reshard
from holdfast.flash.trainer.cuda_copies import Gpus, upload
from house import forks

pytestmark = pytest.mark.train


class Recorder:
    """Stands in for torch.cuda: notes each call, and what slots looked like when it came."""

    def __init__(self, error: int = 0) -> None:
        self.calls: list[str] = []
        self.slots: Any = ()
        self.held = threading.Event()
        self.held.set()
        self._error = error
        self._events = 0

    def note(self, call: str) -> None:
        states = {slot.state for slot in self.slots}
        self.calls.append(f"{call} WRITING" if SlotState.WRITING in states else call)

    def cudart(self) -> Recorder:
        return self

    def cudaHostRegister(self, address: int, size: int, flags: int) -> int:
        assert address % 4096 == 0
        assert size > 0
        assert flags == 1
        self.note("register")
        return self._error

    def cudaHostUnregister(self, address: int) -> int:
        assert address % 4096 == 0
        self.note("unregister")
        return 0

    def current_stream(self, _device: Any) -> FakeStream:
        return FakeStream("current", self)

    def Stream(self, _device: Any) -> FakeStream:
        self.note("new side")
        return FakeStream("side", self)

    @contextlib.contextmanager
    def stream(self, stream: FakeStream) -> Iterator[None]:
        self.note(f"begin on {stream.name}")
        yield
        self.note(f"end on {stream.name}")

    def Event(self) -> FakeEvent:
        self._events += 1
        return FakeEvent(self._events, self)


class FakeStream:
    """A stream that does nothing."""

    def __init__(self, name: str, cuda: Recorder) -> None:
        self.name, self._cuda = name, cuda

    def wait_stream(self, other: FakeStream) -> None:
        self._cuda.note(f"{self.name} waits for {other.name}")

    def wait_event(self, event: FakeEvent) -> None:
        self._cuda.note(f"{self.name} waits for event {event.number}")


class FakeEvent:
    """An event that has come once the recorder lets it."""

    def __init__(self, number: int, cuda: Recorder) -> None:
        self.number, self._cuda = number, cuda

    def record(self, stream: FakeStream) -> None:
        self._cuda.note(f"event {self.number} on {stream.name}")

    def synchronize(self) -> None:
        if self.number % 2 == 0:
            self._cuda.held.wait(60)
        self._cuda.note(f"event {self.number} is there")


@pytest.fixture(name="cuda")
def _cuda(monkeypatch: pytest.MonkeyPatch) -> Recorder:
    """Takes all tensors but the small ones for ones on a GPU."""
    cuda = Recorder()
    monkeypatch.setattr(copier, "is_on_gpu", lambda values: values.numel() > 5)
    monkeypatch.setattr(copier, "_gpus", lambda arena: Gpus(cuda, arena))
    return cuda


def _save(flash: Any, cuda: Recorder, step: int) -> None:
    flash.prepare()
    cuda.slots = flash._preparer.copier.arena.slots
    flash.save(step)


def test_a_slot_is_valid_only_after_the_events(tmp_path: Path, cuda: Recorder) -> None:
    """Register once; each save copies on a side stream behind what computes, then waits."""
    model, optimizer = trained_state()
    with opened(tmp_path, (model, optimizer)) as flash:
        _save(flash, cuda, 1)
        first = list(cuda.calls)
        flash.save(2)
    half = ["side waits for current", "begin on side", "end on side"]
    expected = [
        *half, "event 1 on side", "current waits for event 1",
        *half, "event 2 on side", "event 1 is there", "event 2 is there",
    ]  # fmt: skip
    assert first == ["register", *(f"{call} WRITING" for call in ["new side", *expected])]
    assert cuda.calls.count("register") == 1
    assert [call for call in cuda.calls if call.startswith("new side")] == ["new side WRITING"]
    assert_loads(tmp_path, 2, (model, optimizer), state_of(1))


def test_an_overlapped_copy_is_joined_on_its_event(tmp_path: Path, cuda: Recorder) -> None:
    """The save returns before the event has come; the optimizer's step waits for it."""
    model, optimizer = trained_state()
    state = {"model": model, "optimizer": optimizer}
    with holdfast.Checkpointer(tmp_path, **state, overlap=True) as flash:
        cuda.held.clear()
        _save(flash, cuda, 1)
        assert "event 2 is there WRITING" not in cuda.calls
        assert [slot.state for slot in cuda.slots].count(SlotState.WRITING) == 1
        stepped = threading.Event()

        def take_step() -> None:
            train(model, optimizer)
            stepped.set()

        step = threading.Thread(target=take_step)
        step.start()
        assert not stepped.wait(0.3)
        cuda.held.set()
        assert stepped.wait(60)
        step.join()
        assert cuda.calls[-1] == "event 2 is there WRITING"
        assert SlotState.WRITING not in {slot.state for slot in cuda.slots}


def test_memory_is_unregistered_before_it_goes(tmp_path: Path, cuda: Recorder) -> None:
    """CUDA must not keep pages pinned that nobody has any more."""
    model, optimizer = state_of()
    with opened(tmp_path, (model, optimizer)) as flash:
        _save(flash, cuda, 1)
    cuda.slots = ()
    del flash
    gc.collect()
    assert cuda.calls[-1] == "unregister"


def test_memory_that_cannot_be_registered_is_a_warning(tmp_path: Path, cuda: Recorder) -> None:
    """The copy is right all the same, and nothing is unregistered that never was."""
    cuda._error = 2
    model, optimizer = state_of()
    with opened(tmp_path, (model, optimizer)) as flash:
        with pytest.warns(RuntimeWarning, match="cudaHostRegister .* error 2.*ulimit -l"):
            flash.prepare()
        flash.save(1)
        flash.wait()
    del flash
    gc.collect()
    assert "unregister" not in cuda.calls


def test_a_restore_goes_through_pinned_memory_in_parts(
    tmp_path: Path, cuda: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No buffer is filled again before its copies are done, and every byte arrives."""
    model, optimizer = trained_state()
    save(tmp_path, model=model, optimizer=optimizer)
    monkeypatch.setattr(reshard, "is_on_gpu", lambda values: values.numel() > 5)

    def parts(pairs: Any, threads: int) -> None:
        upload(cuda, pairs, threads, pinned=False, buffer_bytes=64)

    monkeypatch.setattr(reshard, "_upload", parts)
    cuda.calls.clear()
    assert_loads(tmp_path, 1, (model, optimizer), trained_state(1))
    recorded = [call for call in cuda.calls if "on current" in call]
    awaited = [call for call in cuda.calls if "is there" in call]
    assert len(recorded) == len(awaited) > 2 * 3
    first, third = awaited[0].split()[1], cuda.calls.index(recorded[2])
    assert recorded[0].split()[1] == first
    assert third < cuda.calls.index(awaited[0]) < cuda.calls.index(recorded[3])


def test_without_a_gpu_nothing_of_it_is_imported(tmp_path: Path) -> None:
    """A save of CPU tensors neither imports the module nor wakes CUDA."""
    code = (
        "import sys, torch, holdfast;"
        "flash = holdfast.Checkpointer(sys.argv[1], model=torch.nn.Linear(3, 3));"
        "flash.save(1); flash.wait();"
        "flash.load();"
        "assert 'holdfast.flash.trainer.cuda_copies' not in sys.modules;"
        "assert not torch.cuda.is_initialized()"
    )
    done = forks.run(["-c", code, str(tmp_path)], env=os.environ, timeout=60)
    assert done.returncode == 0, done.stderr


@pytest.fixture(name="gpu")
def _gpu() -> str:
    """Gives the name of a real GPU's device."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if not torch.cuda.is_available():
            pytest.skip("no CUDA device here: the copies from a GPU have not run")
    return "cuda"


@pytest.mark.parametrize("overlap", [False, True])
def test_a_state_on_a_gpu_comes_back(tmp_path: Path, gpu: str, *, overlap: bool) -> None:
    """Saves of a model that trains on at once, each read by plain DCP."""
    model = torch.nn.Linear(2048, 2048, device=gpu)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    inputs, wanted = torch.randn(64, 2048, device=gpu), {}
    state: dict[str, Any] = {"model": model, "optimizer": optimizer}
    with holdfast.Checkpointer(tmp_path, **state, overlap=overlap) as flash:
        for step in range(1, 6):
            optimizer.zero_grad()
            model(inputs).square().mean().backward()
            optimizer.step()
            wanted[step] = {name: value.cpu() for name, value in model.state_dict().items()}
            flash.save(step)
    for step in (3, 4, 5):
        found = {"model": {name: torch.empty_like(one) for name, one in wanted[step].items()}}
        dcp.load(found, checkpoint_id=tmp_path / f"step_{step}", no_dist=True)
        assert same(found["model"], wanted[step])
    again = torch.nn.Linear(2048, 2048, device=gpu)
    with holdfast.Checkpointer(
        tmp_path, model=again, optimizer=torch.optim.AdamW(again.parameters())
    ) as flash:
        assert flash.load() == 5
    assert same(again.state_dict(), model.state_dict())


def test_what_is_enqueued_after_a_save_is_not_in_it(tmp_path: Path, gpu: str) -> None:
    """The GPU is far behind: the save holds what was asked of it before, and nothing later."""
    model, values = torch.nn.Module(), torch.zeros(2**24, device=gpu)
    model.register_buffer("values", values)
    busy = torch.randn(4096, 4096, device=gpu)
    with holdfast.Checkpointer(tmp_path, model=model) as flash:
        flash.prepare()
        for step in range(1, 9):
            for _ in range(10):
                torch.mm(busy, busy)
            values.fill_(step)
            flash.save(step)
            values.fill_(-step)
            flash.wait()
            found = {"model": {"values": torch.zeros(2**24)}}
            dcp.load(found, checkpoint_id=tmp_path / f"step_{step}", no_dist=True)
            assert found["model"]["values"].unique().tolist() == [step]


def test_any_layout_and_type_on_a_gpu_comes_back(tmp_path: Path, gpu: str) -> None:
    """Strides, small types, scalars, beside tensors on the CPU; restored on either device."""

    def state(device: str, seed: int) -> Any:
        torch.manual_seed(seed)
        module = torch.nn.Module()
        tensors = {
            "transposed": torch.randn(300, 70).t(),
            "sliced": torch.randn(64, 64)[::2, 1::3],
            "short": torch.randn(1001).bfloat16(),
            "scalar": torch.tensor(float(seed)),
            "flags": torch.randn(77) > 0,
            "empty": torch.empty(0),
        }
        for name, values in tensors.items():
            module.register_buffer(name, values.to(device))
        module.register_buffer("host", torch.randn(33))
        return module

    saved = state(gpu, 1)
    save(tmp_path, model=saved)
    for device in (gpu, "cpu"):
        loaded = state(device, 2)
        assert load(tmp_path, model=loaded) == 1
        host = {name: values.cpu() for name, values in loaded.state_dict().items()}
        assert same(host, {name: values.cpu() for name, values in saved.state_dict().items()})


def test_cuda_lets_the_arena_go(tmp_path: Path, gpu: str) -> None:
    """Memory is registered while it is saved to, and neither leaks nor is left pinned after."""
    model = torch.nn.Linear(512, 512, device=gpu)
    for _ in range(20):
        with holdfast.Checkpointer(tmp_path, model=model) as flash:
            flash.save(1, durable=False)
            assert flash._preparer.copier is not None
            address = flash._preparer.copier.arena.address
            assert _is_pinned(address)
        del flash
        gc.collect()
        assert not _is_pinned(address)
    torch.cuda.synchronize()


def _is_pinned(address: int) -> bool:
    import ctypes

    try:
        one = (ctypes.c_char * 4096).from_address(address)
        return bool(torch.frombuffer(one, dtype=torch.uint8).is_pinned())
    except RuntimeError:
        return False
