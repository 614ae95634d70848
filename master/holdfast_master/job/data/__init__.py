"""Training data: requests of readers for shards, and what they have committed.

Belongs here: what an agent says of its readers, and what the journal and they are told. Does not
belong here: who gets which shard (`policies.data.ledger`).
"""
