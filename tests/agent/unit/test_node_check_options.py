"""Options of `holdfast check`, as its tool reads them: nothing is measured where one is wrong."""

from __future__ import annotations

from pathlib import Path

import pytest

from holdfast_agent.health.node_check.main import main, read_reference
from holdfast_wire.resources import Resource

BAD_INPUT = [
    (["--storage", "/no/where"], "--storage '/no/where': there is no such folder; name"),
    (["--storage", "/proc/version"], "--storage '/proc/version': there is no such folder"),
    (["--ntp", "clock:0"], "--ntp 'clock:0': '0' is no port; write HOST or HOST:PORT"),
    (["--ntp", ":123"], "--ntp ':123': there is no host; write HOST or HOST:PORT"),
    (["--reference", "/nowhere.json"], "--reference '/nowhere.json' cannot be read: "),
    (["--speed"], "unrecognized arguments: --speed; see `holdfast check --help`"),
]


@pytest.mark.parametrize(("words", "error"), BAD_INPUT)
def test_a_wrong_option_names_itself_its_value_and_the_remedy(
    words: list[str], error: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Exit code 2, and one line."""
    assert main(words) == 2
    done = capsys.readouterr()
    assert done.out == ""
    (line,) = done.err.splitlines()
    assert line.startswith(f"holdfast: {error}")


ROW = '{"resource": "cpu_matmul", "subject": "cpu", "verdict": "%s", "value": %s}'


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("[]", "has no list `figures`"),
        ("{", "cannot be read: "),
        ('{"figures": [{"resource": "soul"}]}', "figures[0] is {'resource': 'soul'}, which is no"),
        ('{"figures": [%s]}' % (ROW % ("ok", '"1"')), "value '1' is no number"),
        ('{"figures": [%s]}' % (ROW % ("ok", "-1")), "value -1 is out of range"),
    ],
)
def test_a_reference_that_is_none_is_refused(
    tmp_path: Path, text: str, error: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """The error names the place in the file and how to make a right one."""
    file = tmp_path / "reference.json"
    file.write_text(text)
    assert main(["--reference", str(file)]) == 2
    line = capsys.readouterr().err
    assert error in line
    assert "make it on a healthy node with `holdfast check -o json`" in line


def test_a_reference_has_the_figures_without_a_fault(tmp_path: Path) -> None:
    """What was slow or failed there is no measure for others."""
    good, slow = ROW % ("no reference", "0.5"), (ROW % ("slow", "0.1")).replace('cpu"', 'x"')
    file = tmp_path / "reference.json"
    file.write_text('{"kind": "4 x CPU", "figures": [%s, %s]}' % (good, slow))  # noqa: UP031 - braces
    found = read_reference(str(file))
    assert found.kind == "4 x CPU"
    assert found.figures == {(Resource.CPU_MATMUL, "cpu"): 0.5}
