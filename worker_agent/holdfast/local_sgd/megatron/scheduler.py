"""Megatron's scheduler as replicas carry it: a joiner is to be where the others are after a step.

Belongs here: what of Megatron's own state must be changed for that. Does not belong here: when a
joiner is given it (`elastic`), schedulers of torch (`ddp_members.counts_to`).

Members change within `optimizer.step()`. Megatron's loop steps the scheduler after it, by samples.
So what others give is one step behind, and only they know how many samples a step has. Megatron's
`load_state_dict` adds what it loads to what the scheduler has counted.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

_INCREMENT: Final = "holdfast_increment"


class CarriedScheduler:
    """An `OptimizerParamScheduler` whose state says by how much the script steps it next."""

    def __init__(self, scheduler: Any, is_in_step: Callable[[], bool]) -> None:
        """Note from now on by how much the script steps it.

        Args:
            scheduler: Megatron's.
            is_in_step: Tells if an inner step was made behind which the script steps it yet.
        """
        self._scheduler, self._is_in_step = scheduler, is_in_step
        self._increment, self._late = 0, 0
        step = scheduler.step

        def noted(increment: int) -> None:
            self._increment = increment
            step(increment)

        scheduler.step = noted
        self._step = step

    def state_dict(self) -> dict[str, Any]:
        """Return Megatron's state, and what it is behind."""
        late = (self._increment or _global_batch_size()) if self._is_in_step() else 0
        return {**self._scheduler.state_dict(), _INCREMENT: late}

    def load_state_dict(self, state_dict: dict[str, Any], /) -> None:
        """Take a state in place of the scheduler's own."""
        state = dict(state_dict)
        self._late, own = state.pop(_INCREMENT), self._increment
        self._scheduler.num_steps = 0
        self._scheduler.load_state_dict(state)
        self._increment = own or self._late

    def catch_up(self) -> bool:
        """Make the step that the giver's script made meanwhile; return whether there was one."""
        late, self._late = self._late, 0
        if late:
            self._step(late)
        return late > 0


def carried(one: Any, is_in_step: Callable[[], bool]) -> Any:
    """Return the object to be carried for this: itself, unless it is Megatron's scheduler."""
    from megatron.core.optimizer_param_scheduler import OptimizerParamScheduler

    return CarriedScheduler(one, is_in_step) if isinstance(one, OptimizerParamScheduler) else one


def _global_batch_size() -> int:
    """Return the samples of a step as Megatron counts them; 0: it does not."""
    from megatron.core import num_microbatches_calculator as calculator

    try:
        return int(calculator.get_current_global_batch_size())
    except AttributeError:  # none was made
        return 0
