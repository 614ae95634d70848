"""The page of conditions says every reason that the operator can write, and no other."""

from __future__ import annotations

import ast
import re
from pathlib import Path

from holdfast_operator.apply import INVALID_TEMPLATE
from holdfast_operator.kube import pods
from holdfast_operator.plan.finish import MASTER_LOST
from holdfast_operator.reconcile import NOT_SUPPORTED
from holdfast_operator.status import obstacles, statements
from holdfast_wire.reasons import END_REASONS

PAGE = Path(__file__).parents[2] / "docs/reference/conditions.md"
ENDS = "FailureTarget, Complete, Failed"


def _written() -> dict[str, set[tuple[str, str]]]:
    """Condition -> (status, reason) of every row that names a reason."""
    found: dict[str, set[tuple[str, str]]] = {}
    for part in PAGE.read_text().split("\n## ")[1:]:
        title, _, rows = part.partition("\n")
        found[title] = set(re.findall(r"^\| (True|False) \| `(\w+)` \|", rows, re.MULTILINE)) | {
            ("", reason) for reason in re.findall(r"^\| `(\w+)` \|", rows, re.MULTILINE)
        }
    return found


def _stated() -> dict[str, set[tuple[str, str]]]:
    """The same of the source: literal reasons of each function that states a condition."""
    found: dict[str, set[tuple[str, str]]] = {}
    for function in ast.parse(Path(statements.__file__).read_text()).body:
        if not isinstance(function, ast.FunctionDef) or function.name == "statements":
            continue
        assigned = re.search(r"\bkind = ['\"](\w+)['\"]", ast.unparse(function))
        for call in ast.walk(function):
            if isinstance(call, ast.Call) and ast.unparse(call.func) == "Statement":
                kind, holds, reason = call.args[:3]
                name = kind.value if isinstance(kind, ast.Constant) else assigned and assigned[1]
                text = _literal(reason)
                if text and name:
                    found.setdefault(str(name), set()).add((ast.unparse(holds), text))
    return found


def _literal(reason: ast.expr) -> str | None:
    if isinstance(reason, ast.Constant):
        return str(reason.value)
    named = vars(statements).get(ast.unparse(reason))
    return named if isinstance(named, str) else None


def test_every_reason_of_a_condition_is_on_the_page_with_its_status() -> None:
    """What a script waits for should be looked up, not found out."""
    page, code = _written(), _stated()
    assert set(page) == {*code, ENDS, "Obstacles", "Who ended a pod"}
    # A scaling that goes on repeats the reason that it began with.
    assert {kind: page[kind] for kind in code} == code


def test_every_end_of_a_job_is_on_the_page() -> None:
    """The master's reasons, and the three that the operator decides."""
    ends = END_REASONS | {MASTER_LOST, INVALID_TEMPLATE, NOT_SUPPORTED}
    assert {reason for _, reason in _written()[ENDS]} == ends


def test_every_obstacle_is_on_the_page() -> None:
    """They stand in MasterReady, QuorumReady and Degraded in whoever's words."""
    known = {obstacles.QUOTA_EXCEEDED, obstacles.PODS_REFUSED, pods._UNSCHEDULABLE}
    known |= set(pods._WAITS.values())
    assert {reason for _, reason in _written()["Obstacles"]} == known
