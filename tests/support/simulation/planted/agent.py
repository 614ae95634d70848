"""Planted bugs in who obeys whom: agents, the operator, and a master that should give way."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from holdfast_agent.policies import liveness, master_messages
from holdfast_agent.policies.liveness import LeaseVerdict, MasterlessVerdict
from holdfast_agent.policies.master_messages import Accepted, FenceVerdict, OrderVerdict, RoundOrder
from holdfast_master import core
from holdfast_master.job.state import outgoing_batch
from holdfast_operator.plan.view import KnownMaster
from holdfast_wire.messages import Welcome

Patch = tuple[Any, str, Any]
"""Owner, name, and what it is to be."""


def skip_fence() -> list[Patch]:
    """An agent obeys any master."""

    def judge(known: Accepted, got: Any, *, about_round: bool) -> FenceVerdict:
        del known, about_round
        return FenceVerdict.ACCEPT if got is not None and got.epoch else FenceVerdict.NO_FENCE

    return [(master_messages, "judge_fence", judge)]


def twin_accepted() -> list[Patch]:
    """An equal epoch with another incarnation is taken for its own."""
    right = core._superseded

    def superseded(context: Any, got: Any) -> bool:
        return right(context, got) if got and got.epoch > context.identity.epoch else False

    return [(core, "_superseded", superseded)]


def zombie_goes_on() -> list[Patch]:
    """A master ignores that a newer one exists."""
    return [(core, "_superseded", lambda *_: False)]


def digest_first() -> list[Patch]:
    """A digest overtakes the Welcome of the stream that it goes to: the agent gives that up."""
    right = outgoing_batch.OutgoingBatch.send_first

    def send_first(self: Any, node: Any, message: Any) -> None:
        send = outgoing_batch.OutgoingBatch.send if isinstance(message, Welcome) else right
        send(self, node, message)

    return [(outgoing_batch.OutgoingBatch, "send_first", send_first)]


def old_round_obeyed() -> list[Patch]:
    """Workers of a round that the master gave up live on."""
    right = master_messages.on_welcome

    def keep(own_round: int, master_round: int, *, alive: bool) -> OrderVerdict:
        verdict = right(own_round, master_round, alive=alive)
        return OrderVerdict(RoundOrder.KEEP, verdict.reason)

    return [(master_messages, "on_welcome", keep)]


def masterless_for_ever() -> list[Patch]:
    """Workers without a master never die."""
    return [
        (liveness, "judge_masterless", lambda **_: MasterlessVerdict(kill=False, reason="never"))
    ]


def peers_ignored() -> list[Patch]:
    """An agent without a master does not believe its peers that there is a newer round."""
    right = liveness.judge_masterless

    def judge(*, answers: Any, **more: Any) -> MasterlessVerdict:
        del answers
        return right(answers=(), **more)

    return [(liveness, "judge_masterless", judge)]


def lease_ignored() -> list[Patch]:
    """A lease that ran out is renewed as if nothing had been."""
    return [(liveness, "judge_lease", lambda **_: LeaseVerdict.RENEW)]


def operator_obeys_zombie() -> list[Patch]:
    """The operator does what a master says that another one has followed."""
    right = KnownMaster.refusal

    def refusal(self: KnownMaster, got: Any) -> str:
        return right(self, got) if got and got.epoch == self.epoch else ""

    return [(KnownMaster, "refusal", refusal)]


def operator_obeys_twin() -> list[Patch]:
    """The operator takes an equal epoch with another incarnation for the master that it knows."""
    right = KnownMaster.refusal

    def refusal(self: KnownMaster, got: Any) -> str:
        return right(self, got) if got and got.epoch < self.epoch else ""

    return [(KnownMaster, "refusal", refusal)]


BUGS: tuple[tuple[str, str, Callable[[], list[Patch]]], ...] = (
    ("skipped fence", "an agent obeys any master", skip_fence),
    (
        "twin accepted",
        "an equal epoch with another incarnation is obeyed",
        twin_accepted,
    ),
    ("zombie goes on", "a master ignores that a newer one exists", zombie_goes_on),
    (
        "old round lives",
        "workers of a round that the master gave up live on",
        old_round_obeyed,
    ),
    (
        "masterless for ever",
        "workers without a master never die",
        masterless_for_ever,
    ),
    (
        "peers ignored",
        "workers of an older round live on where peers know better",
        peers_ignored,
    ),
    ("lease ignored", "workers live on although their lease ran out", lease_ignored),
    ("digest first", "a digest goes before the Welcome", digest_first),
    (
        "operator obeys a zombie",
        "a master that was followed has pods deleted and made",
        operator_obeys_zombie,
    ),
    (
        "operator obeys a twin",
        "of two masters with one epoch the operator obeys both",
        operator_obeys_twin,
    ),
)
