"""What an accepted order of the master means for the round that runs here.

Pure tables of cases. How processes are killed and started is `workers`' business.
"""

from __future__ import annotations

import dataclasses
import enum


class Order(enum.Enum):
    """What the agent does with its workers."""

    KEEP = "keep"
    """Nothing changes."""
    START = "start"
    """Kill what runs, then start the assigned round."""
    KILL = "kill"
    """Kill what runs; a new assignment will follow."""


@dataclasses.dataclass(frozen=True, slots=True)
class Verdict:
    """An order and why."""

    order: Order
    reason: str


def on_assignment(own_round: int, new_round: int, local_world_size: int, offered: int) -> Verdict:
    """Decide on an assignment whose fence was accepted.

    own_round: newest round that was assigned here; 0: none.
    local_world_size, offered: processes that the assignment asks for, and that this node has.
    """
    if new_round == own_round:
        return Verdict(Order.KEEP, f"round {new_round} was assigned before")
    if new_round < own_round:
        return Verdict(Order.KEEP, f"round {new_round} is older than {own_round}")
    if local_world_size != offered:
        return Verdict(
            Order.KEEP,
            f"the assignment asks for {local_world_size} processes, this node said {offered}",
        )
    return Verdict(Order.START, f"round {new_round} replaces {own_round}")


def on_welcome(own_round: int, master_round: int, *, alive: bool) -> Verdict:
    """Decide after a hello was answered: only the round that the master knows may live on.

    own_round: round of the processes here; master_round: the one the master believes in, 0: none.
    """
    if not alive:
        return Verdict(Order.KEEP, "nothing runs here")
    if own_round == master_round:
        return Verdict(Order.KEEP, f"the master knows round {own_round}")
    return Verdict(
        Order.KILL, f"round {own_round} runs here, the master knows {master_round or 'none'}"
    )


def on_stop(own_round: int, stop_round: int, *, alive: bool) -> Verdict:
    """Decide on a stop order about `stop_round` (fence accepted, so it is not older)."""
    if not alive:
        return Verdict(Order.KEEP, "nothing runs here")
    if stop_round not in (0, own_round):
        return Verdict(Order.KEEP, f"round {own_round} runs here, not {stop_round}")
    return Verdict(Order.KILL, f"the master stops round {own_round}")


def warmth_unknown(*, warm: bool, said: bool, cold_reason: str) -> bool:
    """Whether a master that has just welcomed this agent must be told that it is ready.

    said: its hello said so. A zygote that became ready between hello and Welcome was told to
    nobody, and a hello has no room for why workers are started cold.
    """
    return warm and (not said or bool(cold_reason))
