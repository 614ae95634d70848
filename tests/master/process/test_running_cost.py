"""Size of a master of ten thousand agents: the poller, malloc, the garbage collector."""

from __future__ import annotations

import ctypes
import gc
import os

import pytest

from holdfast_master.process import os_process
from house.programs import script


def test_a_poller_that_the_user_chose_stays() -> None:
    """Ours is only a default."""
    chosen: dict[str, str] = {}
    os_process.choose_poller(chosen)
    assert chosen == {os_process.EXPERIMENTS: os_process.POLLER}
    own = {os_process.EXPERIMENTS: "something"}
    os_process.choose_poller(own)
    assert own == {os_process.EXPERIMENTS: "something"}


def test_grpc_knows_the_poller() -> None:
    """A release that has dropped the choice would only say so in its log."""
    code = "import grpc; grpc.insecure_channel('localhost:1').close()"

    def said(experiments: str) -> str:
        environment = {**os.environ, os_process.EXPERIMENTS: experiments, "GRPC_VERBOSITY": "INFO"}
        return script(code, env=environment, check=True).stderr.lower()

    assert "unknown experiment" in said("no_such_thing")
    assert "unknown experiment" not in said(os_process.POLLER)


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "mallopt"), reason="malloc has no options here")
def test_malloc_is_told() -> None:
    """In a process of its own: it cannot be taken back."""
    code = "from holdfast_master.process import os_process; assert os_process.spread_large_blocks()"
    script(code, check=True)


def test_garbage_is_looked_for_less_often() -> None:
    """And never among what was there before."""
    before = gc.get_threshold()
    try:
        os_process.collect_rarely()
        assert gc.get_threshold() == os_process.COLLECT_AFTER
        assert gc.get_freeze_count()
    finally:
        gc.unfreeze()
        gc.set_threshold(*before)
