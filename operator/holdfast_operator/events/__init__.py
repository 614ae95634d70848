"""Kubernetes events about a job: collected, counted, limited in rate, written."""
