"""The agent's connections: the session with its master, calls between agents.

The reaction to a message belongs to `agent`.
"""
