"""The ledger in a table of the target database."""
