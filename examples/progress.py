"""Progress of training. With the flags it determines learning rate and data order."""

from __future__ import annotations

from dataclasses import asdict, dataclass


@dataclass(slots=True)
class Progress:
    """Saved with the model: `state_dict` and `load_state_dict` are all that this takes."""

    step: int = 0
    """Completed optimizer steps."""
    samples: int = 0
    """Samples that went into them: where in the data to go on."""

    def state_dict(self) -> dict[str, int]:
        """Return what to save."""
        return asdict(self)

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Take over what was saved."""
        self.step, self.samples = state["step"], state["samples"]
