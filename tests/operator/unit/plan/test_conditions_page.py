"""The page of conditions says every reason that the operator can write, and no other."""

from __future__ import annotations

import ast
import re
from pathlib import Path

from holdfast_operator.apply import INVALID_TEMPLATE
from holdfast_operator.finish import MASTER_LOST
from holdfast_operator.plan.pods import UNSCHEDULABLE
from holdfast_operator.pods import record
from holdfast_operator.reconcile import NOT_SUPPORTED
from holdfast_operator.status import blocked_pods, conditions
from holdfast_wire.reasons import EndReason

PAGE = Path(__file__).parents[4] / "docs/reference/conditions.md"
ENDS = "FailureTarget, Complete, Failed"


def _written() -> dict[str, set[tuple[str, str]]]:
    """Condition -> (status, reason) of every row that names a reason."""
    found: dict[str, set[tuple[str, str]]] = {}
    for part in PAGE.read_text().split("\n## ")[1:]:
        title, _, rows = part.partition("\n")
        found[title] = set(
            re.findall(r"^\| (True|False|Unknown) \| `(\w+)` \|", rows, re.MULTILINE)
        ) | {("", reason) for reason in re.findall(r"^\| `(\w+)` \|", rows, re.MULTILINE)}
    return found


def _stated() -> dict[str, set[tuple[str, str]]]:
    """The same of the source: literal reasons of each rule, and those that the rules share."""
    rules = {rule.__name__: kind for kind, rule in conditions.RULES.items()}
    rules["_suspended"], rules["_scales_on"] = "Suspended", "Scaling"
    rules["_admitted"], rules["_gang_ready"] = "Admitted", "GangReady"
    found: dict[str, set[tuple[str, str]]] = {kind: set() for kind in rules.values()}
    for function in ast.parse(Path(conditions.__file__).read_text()).body:
        if not isinstance(function, ast.FunctionDef) or function.name not in rules:
            continue
        for call in ast.walk(function):
            if isinstance(call, ast.Call) and ast.unparse(call.func) == "Statement":
                holds, reason = call.args[:2]
                if text := _literal(reason):
                    status = ast.unparse(holds).replace("None", "Unknown")
                    found[rules[function.name]].add((status, text))
    for kind in conditions.RULES:
        nothing = "Unknown" if kind == "Healthy" else "False"
        found[kind].add((nothing, "JobFinished"))
        if kind in conditions.NOT_OF_SUSPENDED:
            found[kind].add((nothing, "Suspended"))
    return found


def _literal(reason: ast.expr) -> str | None:
    if isinstance(reason, ast.Constant):
        return str(reason.value)
    named = vars(conditions).get(ast.unparse(reason))
    return named if isinstance(named, str) else None


def test_every_reason_of_a_condition_is_on_the_page_with_its_status() -> None:
    """The page lists every reason of a condition with its status, for scripts that wait."""
    page, code = _written(), _stated()
    assert set(page) == {*code, ENDS, "Obstacles", "Who ended a pod"}
    # A scaling that goes on repeats the reason that it began with.
    assert {kind: page[kind] for kind in code} == code


def test_every_end_of_a_job_is_on_the_page() -> None:
    """The master's reasons, and the three that the operator decides."""
    masters = {value for name, value in vars(EndReason).items() if name.isupper()}
    ends = masters | {MASTER_LOST, INVALID_TEMPLATE, NOT_SUPPORTED}
    assert {reason for _, reason in _written()[ENDS]} == ends


def test_every_obstacle_is_on_the_page() -> None:
    """They stand in MasterReady, QuorumReady and Degraded in whoever's words."""
    known = {blocked_pods.QUOTA_EXCEEDED, blocked_pods.PODS_REFUSED, UNSCHEDULABLE}
    known |= {blocked_pods.GANG_MISSING}
    known |= set(record._WAITS.values())
    assert {reason for _, reason in _written()["Obstacles"]} == known
