"""Errors of a source of notices; the thread that asks it tries again."""

from __future__ import annotations


class SourceError(Exception):
    """A source did not answer, or not in a form that is documented; the text has its address."""
