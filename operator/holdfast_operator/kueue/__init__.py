"""Kueue: a job with a queue's label runs as many workers as the queue has admitted.

`slices` decides, `objects` reads and writes Workloads, `queue` keeps both in step.
"""
