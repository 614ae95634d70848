"""Conversions as a test makes them: done, or refused in one line without a trace."""

from __future__ import annotations

from pathlib import Path

import pytest

from holdfast.flash.tools import convert

Print = pytest.CaptureFixture[str]


def converted(source: str | Path, target: Path, *options: str) -> Path:
    """Convert; return the step that was made in the target, or the target."""
    assert convert.main(["convert", str(source), str(target), *options]) == 0
    return next(target.glob("step_*"), target)


def refused(capsys: Print, source: str | Path, target: Path, *texts: str, step: int = 1) -> str:
    """See a conversion refused with a line that has some texts; return it. Nothing is written."""
    assert convert.main(["convert", str(source), str(target), "--step", str(step)]) == 2
    error = capsys.readouterr().err
    assert [text for text in texts if text not in error] == [], error
    assert error.count("\n") == 1
    assert not target.exists()
    return error
