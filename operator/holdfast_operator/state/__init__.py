"""State of one job between two looks at it, in groups; each group has the methods that change it.

Nothing here makes a request: `reconcile` and its parts read the cluster and write to it.
"""
