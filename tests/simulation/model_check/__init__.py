"""Is the model of Kafka like Kafka? The same conversations with both, and every answer compared.

``conversations`` says what is asked, ``talk`` how it is written down, ``sides`` who answers: the
model, or brokers of :class:`onceward_testing.LocalKafka` through Onceward's own client.
``recorded/`` has what the brokers said last, so that the fast tier compares the model with that;
``make model-check`` asks them again.
"""
