"""Evidence of incidents, kept for people.

Belongs here: its files and their bounds. Does not belong here: what is collected, and any decision.
"""
