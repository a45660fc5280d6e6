"""What pipelines write to besides Kafka: a store with transactions, somebody who takes chunks of
rows, and files as Spark's own tasks write them.
"""
