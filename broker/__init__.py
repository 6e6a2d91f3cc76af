"""What client, driver and worker agree on: messages, the ledger in Redis, names and settings."""
