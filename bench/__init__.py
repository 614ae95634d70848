"""Benchmarks: each folder measures one thing, with its peers in the same run; `harness` is theirs.

The words of a page are in its `.md.template`, what is computed in Python.

Not shipped: nothing here is imported by a part of Holdfast. Some benches train with the tests'
models and clusters, so what tests share is on the path.
"""

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
_SHARED = ("tests/support", "tests/testbed", "examples")
sys.path += [path for name in _SHARED if (path := str(ROOT / name)) not in sys.path]
