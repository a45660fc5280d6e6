"""Independent checker: recompute from the logs what each batch wrote, and compare.

Runs as a process of its own, ``onceward verify`` or ``python -m onceward_verify``. It reads with
librdkafka (``confluent-kafka``) and **imports nothing of** ``onceward``, not even its errors: a
mistake in the client, in the encoder or in the ledger's code must not be repeated by the reader
that looks for it. An import contract holds that. It only reads: it joins no group, commits
nothing, fences nobody, and may look at a running pipeline.

Route for readers: ``cli`` builds one of three questions. ``topics``: ``ledger`` and ``chain`` (the
batches as recorded) → ``outputs`` over ``partition_log`` (the batches as visible) → ``fencing``
(the brokers' files, for epochs) → ``conservation`` over ``tally`` (the input, if ``--conserves``
asks for it) → ``sources`` (positions, lag). ``tables``: ``database`` with ``postgresql`` or
``mysql`` → ``table_rows``. ``files``: ``file_views``. All of them fill ``findings``. ``cluster``
is the only module that talks to a broker.
"""
