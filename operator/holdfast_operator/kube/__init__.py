"""The Kubernetes API as the operator uses it: requests, watches, what of a pod is kept.

The only place that imports the client library. What to do with what is seen is decided in `plan`.
"""
