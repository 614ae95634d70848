"""Metrics of a job in Prometheus' text format, served by its master.

Names, labels and their meaning stand in `families`. Decisions do not belong here.
"""
