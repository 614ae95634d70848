"""Training process's side of a checkpoint: state, plan, copy, restore."""
