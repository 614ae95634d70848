"""Takeover by a new master: agents' hellos, a world to adopt, an earlier master's journal.

Decisions about a world that this master made itself belong to `worlds`.
"""
