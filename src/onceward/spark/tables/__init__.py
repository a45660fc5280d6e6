"""Delta, Iceberg and Avro through Spark's own classes."""
