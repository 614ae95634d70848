"""Messages of agents, of the operator and of users: each one read and handed to its subject.

The consequences of a message belong to the folders below.
"""
