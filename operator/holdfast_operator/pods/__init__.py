"""Pods of a job: built from templates, named, read back. Pure.

Does not belong here: the decision to make or delete a pod (`plan`).
"""
