"""MySQL and MariaDB changes as a source: snapshot, then the binary log."""
