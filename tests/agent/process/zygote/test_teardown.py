"""Files and memory that a script leaves open at its end are closed and freed in time."""

from __future__ import annotations

import bz2
import gzip
import lzma
import shelve
import tarfile
import time
import zipfile
from pathlib import Path

import pytest

from agents.plain_python import plain_python
from agents.zygote_driver import Driver

OPEN_ALL = """
import bz2, gzip, io, lzma, shelve, sys, tarfile, tempfile, zipfile

def open_all(folder):
    g = gzip.open(f"{folder}/a.gz", "wt"); g.write("hello" * 1000)
    b = bz2.open(f"{folder}/a.bz2", "wt"); b.write("hello" * 1000)
    x = lzma.open(f"{folder}/a.xz", "wt"); x.write("hello" * 1000)
    z = zipfile.ZipFile(f"{folder}/a.zip", "w"); z.writestr("a", "hello" * 1000)
    t = tarfile.open(f"{folder}/a.tar", "w"); t.add(__file__, "a")
    s = shelve.open(f"{folder}/shelf", writeback=True); s["a"] = []; s["a"].append("hello")
    p = open(f"{folder}/plain", "w"); p.write("hello" * 1000)
    n = tempfile.NamedTemporaryFile(dir=folder, prefix="temporary")
    d = tempfile.TemporaryDirectory(dir=folder, prefix="temporary")
    return g, b, x, z, t, s, p, n, d
"""

HELD = {
    "by-a-variable": "things = open_all(sys.argv[1])",
    "by-a-cycle": "things = [*open_all(sys.argv[1])]; things.append(things)",
    "by-a-function": "things = open_all(sys.argv[1])\ndef f(): return things",
    "by-another-module": "import keeper; keeper.things = open_all(sys.argv[1])",
    "by-an-installed-module": "import wave; wave.things = open_all(sys.argv[1])",
    "by-one-imported-before": "import json; json.things = open_all(sys.argv[1])",
    "by-a-failed-function": "def f():\n    things = open_all(sys.argv[1])\n    1 / 0\nf()",
    "beside-a-daemon-thread": (
        "things = open_all(sys.argv[1])\nimport threading, time\n"
        "def work():\n    while True: things[0].write('more'); time.sleep(0.0001)\n"
        "threading.Thread(target=work, daemon=True).start(); time.sleep(0.1)"
    ),
}


def _check(folder: Path) -> None:
    text = "hello" * 1000
    assert gzip.decompress((folder / "a.gz").read_bytes()).decode().startswith(text)
    assert bz2.decompress((folder / "a.bz2").read_bytes()).decode() == text
    assert lzma.decompress((folder / "a.xz").read_bytes()).decode() == text
    with zipfile.ZipFile(folder / "a.zip") as archive:
        assert archive.read("a").decode() == text
    with tarfile.open(folder / "a.tar") as tar:
        assert tar.getnames() == ["a"]
    assert (folder / "plain").read_text() == text
    with shelve.open(str(folder / "shelf")) as shelf:  # noqa: S301 - our own file
        assert shelf["a"] == ["hello"]
    assert list(folder.glob("temporary*")) == []


@pytest.mark.parametrize("held", HELD)
def test_what_a_script_leaves_open_is_closed(shared: Driver, tmp_path: Path, held: str) -> None:
    """Archives have their ends and temporary files are gone, whatever holds them."""
    (shared.folder / "keeper.py").touch()
    ended = shared.run(f"{OPEN_ALL}\n{HELD[held]}", str(tmp_path))
    failed = "failed" in held
    assert ended.status == int(failed)
    if failed:
        assert ended.err.endswith("ZeroDivisionError: division by zero\n")
    else:
        assert ended.err == ""
    _check(tmp_path)


def test_destructors_run_as_under_python(shared: Driver) -> None:
    """With the variables of their module still there, and in python's order."""
    code = """
import sys
class Thing:
    def __init__(self, name): self.name = name
    def __del__(self): say(self.name)
def say(name): print("gone", name, WORDS["last"])
WORDS = {"last": "word"}
first, second = Thing("first"), Thing("second")
cycle = Thing("cycle"); cycle.me = cycle
print("end")
"""
    forked = shared.run(code)
    plain = plain_python(str(shared.folder / "script.py"), check=False)
    assert forked.err == plain.stderr == ""
    assert sorted(forked.out.splitlines()) == sorted(plain.stdout.splitlines())
    assert forked.out.count("gone") == 3


@pytest.mark.parametrize(
    ("wait", "name"),
    [
        ("time.sleep(600)", "the destructors of what it leaves"),
        ("ctypes.PyDLL(None).sleep(600)", "in __del__"),
    ],
    ids=["python", "c-with-the-interpreters-lock"],
)
def test_a_destructor_that_hangs_is_named_and_ends_nothing_else(
    shared: Driver, wait: str, name: str
) -> None:
    """The process ends with the script's own status, and says where it stood."""
    begun = time.monotonic()
    ended = shared.run(
        f"""
        import ctypes, sys, time
        class Hangs:
            def __del__(self): {wait}
        hangs = Hangs()
        sys.exit(3)
        """
    )
    assert ended.status == 3
    assert time.monotonic() - begun < 20
    assert "in __del__" in ended.err
    assert name in ended.err


def test_a_destructor_that_fails_changes_nothing(shared: Driver) -> None:
    """As under python: it is printed, and the status stays."""
    ended = shared.run("class T:\n    def __del__(self): 1 / 0\nthing = T()")
    assert ended.status == 0
    assert "ZeroDivisionError" in ended.err
