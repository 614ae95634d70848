"""Pods of a job: built from templates, named, read back. Pure."""
