"""Programs that read committed steps: inspect, diff, convert. They change nothing they read.

Does not belong here: anything that a training process needs.
"""
