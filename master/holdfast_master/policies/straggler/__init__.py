"""Stragglers: from collectives to steps, votes, verdicts and exclusions. Pure."""
