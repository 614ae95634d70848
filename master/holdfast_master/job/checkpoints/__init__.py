"""Checkpoints of the job: what a round restores from, commits, intervals, saves on demand.

Reading or writing a checkpoint is the agents' work.
"""
