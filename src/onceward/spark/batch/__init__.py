"""Spark's plans, jobs, queries and failures as a micro-batch meets them."""
