"""The operator on a real control plane: how soon it acts, how much it writes, what kills do."""
