"""Client of the Kubernetes API for the operator: requests, watches, a cache of pods.

The only folder that imports the client library. Decisions about objects are made in `plan`.
"""
