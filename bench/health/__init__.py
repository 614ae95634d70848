"""Stragglers on seeded and recorded traces, beside the rules of others."""
