"""Writes `docs/reference/local-sgd-settings.md` from the settings, or checks that it is up to date.

`make manifests` writes; `--check` exits with 1 where the page would change. Every default and text
on the page is that of `holdfast.local_sgd.config` and `combinations`.
"""

from __future__ import annotations

import ast
import dataclasses
import inspect
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

from generated_page import keep
from holdfast.local_sgd import config as settings
from holdfast.local_sgd.combinations import TOGETHER_RULES
from holdfast.local_sgd.config import Rule

PAGE = Path(__file__).resolve().parent.parent / "docs/reference/local-sgd-settings.md"
CLASSES = (settings.LocalSGDConfig, settings.OuterOptimizerConfig, settings.GTAConfig)
RULES: Sequence[Rule[Any]] = (
    *settings.LOCAL_RULES,
    *settings.OUTER_RULES,
    *settings.GTA_RULES,
    *TOGETHER_RULES,
)
HEAD = """# Local SGD: every setting

<!-- Written by scripts/local_sgd_settings.py from holdfast.local_sgd: change that, then run
`make manifests`. -->

The settings of [local SGD](../local-sgd.md). A value that is not valid, and settings of which one
would have no effect, are refused by name before training begins, with `LocalSGDConfigError`.
"""
RULES_HEAD = """## Rules

A refusal names its rule.

| rule | fields | why | do instead |
|---|---|---|---|
"""


def page() -> str:
    """Return the page."""
    rows = "\n".join(
        f"| `{one.name}` | {', '.join(f'`{_field(name)}`' for name in one.fields)} | "
        f"{_cell(one.why)} | {_cell(one.remedy)} |"
        for one in RULES
    )
    return "\n".join([HEAD, *(_class(one) for one in CLASSES), f"{RULES_HEAD}{rows}\n"])


def _class(one: type[Any]) -> str:
    defaults = {field.name: _default(field) for field in dataclasses.fields(one)}
    first = inspect.cleandoc(one.__doc__ or "").partition("\n")[0]
    rows = "\n".join(
        f"| `{name}` | `{_cell(kind)}` | `{_cell(defaults[name])}` | {_cell(text)} |"
        for name, kind, text in _fields(one)
    )
    return (
        f"## {one.__name__}\n\n{first}\n\n| field | type | default | what it does |\n"
        f"|---|---|---|---|\n{rows}\n"
    )


def _fields(one: type[Any]) -> Iterator[tuple[str, str, str]]:
    """Yield name, type and docstring of each field, as the source has them."""
    body = [node for found in ast.parse(inspect.getsource(one)).body for node in _body(found)]
    for field, text in pairwise(body):
        if not isinstance(field, ast.AnnAssign) or not isinstance(text, ast.Expr):
            continue
        if isinstance(text.value, ast.Constant):
            words = " ".join(str(text.value.value).split())
            yield ast.unparse(field.target), ast.unparse(field.annotation), words


def _body(found: ast.stmt) -> list[ast.stmt]:
    return found.body if isinstance(found, ast.ClassDef) else []


def _default(field: dataclasses.Field[Any]) -> str:
    made = field.default_factory
    return repr(field.default if made is dataclasses.MISSING else made())


def _field(name: str) -> str:
    return name.rpartition(".")[2]


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("<", "&lt;")


if __name__ == "__main__":
    keep(PAGE, page())
