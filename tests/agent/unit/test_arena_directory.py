"""The directory of an agent's arenas: who may have it, and that nothing stays behind."""

from __future__ import annotations

import asyncio
import os
import random
import socket
import time
from pathlib import Path

import pytest

from checkpoints.lone_peers import nobody
from checkpoints.sample_shards import sample_step
from holdfast.flash.memory.arena import geometry_of
from holdfast.flash.memory.file_backend import FileBackend
from holdfast.flash.memory.shard_table import decode, encode
from holdfast_agent.checkpoint.arenas import Arenas
from holdfast_agent.config import settings
from holdfast_agent.errors import ArenasError, InputError
from holdfast_wire import keys

_LOOK_SECONDS = 0.02


def _names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def _until_swept(folder: Path) -> None:
    deadline = time.monotonic() + 30
    while any(name.startswith("arena-") for name in _names(folder)):
        assert time.monotonic() < deadline
        time.sleep(_LOOK_SECONDS)


def _leave(folder: Path, job: str) -> None:
    """Leave an arena as an agent does that is killed before its trainer saved anything."""
    volume = FileBackend(str(folder), job)
    body = encode(sample_step(1, random.Random(0))[0].shards[0].table)
    fd, _ = volume.make(body, geometry_of(decode(body), len(body), 3, 4096))
    os.close(fd)
    os.close(volume._lock)


async def test_a_directory_has_one_agent_and_nothing_is_left_of_it(tmp_path: Path) -> None:
    """The second is refused before it starts anything; the end of the first frees it."""
    first = Arenas(str(tmp_path), "job")
    with pytest.raises(ArenasError, match=f"in use by another agent, process {os.getpid()}"):
        Arenas(str(tmp_path), "job")
    first.open(lambda *_: None, nobody)
    await first.close(5.0)
    assert _names(tmp_path) == []
    second = Arenas(str(tmp_path), "job")
    second.open(lambda *_: None, nobody)
    await second.close(5.0)


async def test_what_is_of_no_use_is_swept_even_where_no_trainer_comes(tmp_path: Path) -> None:
    """A job whose script keeps no checkpoints would otherwise hold that memory for good."""
    _leave(tmp_path, "another job")
    assert len(_names(tmp_path)) == 2
    arenas = Arenas(str(tmp_path), "job")
    arenas.open(lambda *_: None, nobody)
    await asyncio.to_thread(_until_swept, tmp_path)
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as trainer:
        await asyncio.to_thread(trainer.connect, arenas.path)
    await arenas.close(5.0)
    assert _names(tmp_path) == []


def test_a_directory_that_is_missing_is_refused_before_anything_starts(tmp_path: Path) -> None:
    """By name and value; without a master it has no effect, and that is said."""
    tls = tmp_path / "tls"
    tls.mkdir()
    for name in (keys.CA_FILE, keys.CERT_FILE, keys.KEY_FILE):
        (tls / name).touch()
    environ = {
        keys.ENV_MASTER: "127.0.0.1:1",
        keys.ENV_JOB: "j",
        keys.ENV_JOB_UID: "u",
        keys.ENV_NODE_RANK: "0",
        keys.ENV_TLS_DIR: str(tls),
        keys.ENV_ARENA_DIR: str(tmp_path / "none"),
    }
    with pytest.raises(InputError, match=r"HOLDFAST_ARENA_DIR='.*none': expected a directory"):
        settings.load([__file__], environ)
    found = settings.load([__file__], {**environ, keys.ENV_ARENA_DIR: str(tmp_path)})
    assert found.arena_dir == str(tmp_path)
    assert settings.load([__file__], {**environ, keys.ENV_ARENA_DIR: ""}).arena_dir == ""
    alone = settings.load([__file__], {keys.ENV_ARENA_DIR: str(tmp_path)})
    assert alone.arena_dir == ""
    assert any("HOLDFAST_ARENA_DIR has no effect" in note for note in alone.notes)
