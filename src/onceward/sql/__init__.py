"""PostgreSQL, MySQL and MariaDB as targets, and the ledger in a table."""
