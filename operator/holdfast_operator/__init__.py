"""The operator: turns an ElasticJob into a master, worker pods and a status.

It is the only part that calls the Kubernetes API. `spec`, `plan` and `status` are pure and shared
with the local runner. Decisions about training do not belong here, and torch is never imported.
"""
