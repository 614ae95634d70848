"""The job's nodes: who lives, whose pod ended, who is replaced, excluded or eligible.

The cost of a loss belongs to `incidents`.
"""
