"""Cost of the ledger of shards for a job master."""
