"""Time until a script's first collective, beside torchrun."""
