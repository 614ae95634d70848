"""The one task that owns the core: inputs in order, facts to the journal, instructions out.

Decisions belong to the core and `policies`, sending belongs to `server`.
"""
