"""The world as a model: brokers, networks, Spark, databases, file systems, users. Each rule names
its source.
"""
