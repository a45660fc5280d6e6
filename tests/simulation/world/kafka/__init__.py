"""A Kafka cluster as a state machine: brokers 3.9.1 and 4.3.1 as Onceward's client sees them, in
one thread.

``cluster`` is the way in. Each rule cites the class and method of Apache Kafka that it is a rule
of; ``make model-check`` holds the same conversations with real brokers and compares.
"""
