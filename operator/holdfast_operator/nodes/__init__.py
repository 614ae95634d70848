"""Nodes: what they show, what jobs met on them, who avoids them, whether they answer.

`conditions`, `strikes` and `reachability` decide and are pure. `reflector` reads the nodes,
`history` keeps the strikes in a ConfigMap, `probe` connects to pods.
"""
