"""Asks the metadata services of clouds, and a file, for notices about this node's end."""
