"""Preflight: nodes are measured before they join a world, and the bad node is named.

Belongs here: rounds, pairs, verdicts, reference figures. Does not belong here: a measurement (the
agent's `health/`), a clock, what is done with a verdict (`job/health`).

A caller goes through a check like this:

    check = begin(number, participants, references, settings)
    while check.current is not None:
        ...  # each node of check.current measures; reports are collected until the deadline
        check = conclude(check, reports)
    outcome = judge(check)
    references = references_after(check, outcome)
"""

from holdfast_master.policies.preflight.figures import (
    CheckStanding,
    Figure,
    FigureReport,
    MeasuringRound,
    Pair,
    Participant,
    RoundId,
    refuse,
)
from holdfast_master.policies.preflight.references import NONE, Level, References, forget
from holdfast_master.policies.preflight.rounds import (
    Check,
    Outcome,
    PreflightSettings,
    begin,
    conclude,
    judge,
    references_after,
)
from holdfast_master.policies.preflight.suspicion import why_again
from holdfast_master.policies.preflight.verdicts import BAD, LinkFinding, NodeFinding, NodeVerdict

__all__ = [
    "BAD",
    "NONE",
    "Check",
    "CheckStanding",
    "Figure",
    "FigureReport",
    "Level",
    "LinkFinding",
    "MeasuringRound",
    "NodeFinding",
    "NodeVerdict",
    "Outcome",
    "Pair",
    "Participant",
    "PreflightSettings",
    "References",
    "RoundId",
    "begin",
    "conclude",
    "forget",
    "judge",
    "references_after",
    "refuse",
    "why_again",
]
