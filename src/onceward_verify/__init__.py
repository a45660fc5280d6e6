"""Was it exactly once? An independent checker: it recomputes from the logs what each batch is told
to have written.

Runs as a process of its own: ``onceward verify`` or ``python -m onceward_verify``. It reads with
librdkafka (``confluent-kafka``) and **imports nothing else of Onceward**, not even its errors: a
mistake in the client, in the encoder or in the ledger's code must not be repeated by whoever looks
for it. ``.importlinter`` holds that. It only reads: it joins no group, commits nothing, fences
nobody, and may look at a pipeline that is running.

Route for readers: ``checker`` (what is asked, in order) → ``ledger``, ``since`` and ``chain`` (the
batches as told) → ``partition_log``, ``checksum`` and ``manifests`` (the batches as they are) →
``culprits`` (whose is what nobody told of) → ``segments`` and ``fencing`` (the brokers' files, for
epochs) → ``conserves`` with ``lineage`` and ``conservation`` (the input, if it is asked for) →
``positions`` (sources, lag) → ``findings`` and ``report`` (the outcome). ``cluster`` is the only
module that talks to a broker. Of tables: ``tables`` (what is asked) → ``databases`` (which one) →
``postgresql`` or ``mysql`` → ``by_transaction`` or ``by_totals``; of files: ``files`` →
``folder_ledger``, ``file_places``.
"""
