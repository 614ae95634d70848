"""Kubernetes events about a job: collected, counted, limited in rate, written.

Conditions and the status subresource belong to `status`.
"""
