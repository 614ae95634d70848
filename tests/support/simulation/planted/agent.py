"""Planted bugs in who obeys whom: agents, the operator, and a master that should give way."""

from __future__ import annotations

from typing import Any

from holdfast_agent.policies import liveness, master_messages
from holdfast_master import core
from holdfast_master.job.state.outgoing_batch import OutgoingBatch
from holdfast_operator.plan.view import KnownMaster
from holdfast_wire.messages import Fence, Welcome
from simulation.planted.patches import Bugs

BUGS = Bugs()


@BUGS.wrong("skipped fence", "an agent obeys any master", master_messages, "refusal")
def _any_fence(_: Any, known: Fence, got: Any, *, about_round: bool) -> str:
    return "" if got is not None and got.epoch else "it carries no fence"


@BUGS.wrong(
    "twin accepted", "an equal epoch with another incarnation is obeyed", core, "_superseded"
)
def _twin_accepted(right: Any, context: Any, got: Any) -> Any:
    return right(context, got) if got and got.epoch > context.identity.epoch else False


@BUGS.wrong("zombie goes on", "a master ignores that a newer one exists", core, "_superseded")
def _never_superseded(*_: Any) -> bool:
    return False


@BUGS.wrong(
    "old round lives",
    "workers of a round that the master gave up live on",
    master_messages,
    "why_killed",
)
def _keep(*_: Any, **__: Any) -> str:
    return ""


@BUGS.wrong(
    "masterless for ever", "workers without a master never die", liveness, "why_masterless_end"
)
def _never_masterless(_: Any, **__: Any) -> str:
    return ""


@BUGS.wrong(
    "peers ignored",
    "workers of an older round live on where peers know better",
    liveness,
    "why_masterless_end",
)
def _without_peers(right: Any, *, answers: Any, **more: Any) -> Any:
    return right(answers=(), **more)


@BUGS.wrong(
    "lease ignored", "workers live on although their lease ran out", liveness, "lease_ran_out"
)
def _renew(_: Any, **__: Any) -> bool:
    return False


@BUGS.wrong("digest first", "a digest goes before the Welcome", OutgoingBatch, "send_first")
def _digest_first(right: Any, self: Any, node: Any, message: Any) -> None:
    (OutgoingBatch.send if isinstance(message, Welcome) else right)(self, node, message)


@BUGS.wrong(
    "operator obeys a zombie",
    "a master that was followed has pods deleted and made",
    KnownMaster,
    "refusal",
)
def _zombie_obeyed(right: Any, self: KnownMaster, got: Any) -> Any:
    return right(self, got) if got and got.epoch == self.epoch else ""


@BUGS.wrong(
    "operator obeys a twin",
    "of two masters with one epoch the operator obeys both",
    KnownMaster,
    "refusal",
)
def _twin_obeyed(right: Any, self: KnownMaster, got: Any) -> Any:
    return right(self, got) if got and got.epoch < self.epoch else ""
