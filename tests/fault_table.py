"""The faults that the product must survive, which test shows each, and the table that a run prints
of them.

A test says which faults it shows by ``@pytest.mark.fault("driver-killed-mid-send")``. A run that
selected such tests ends with a table: fault by broker version, and how it went. A test that armed
a fault which then did not happen proves nothing: it calls :func:`invalid`, and is counted as
INVALID, which fails the run but is not a verdict on the product.

A plugin of the test suite, loaded by ``tests/conftest.py``.
"""

from __future__ import annotations

from collections import defaultdict
from typing import Any, NoReturn

import pytest

from onceward_testing import LocalKafka

FAULTS = {
    "driver-killed-before-init": "driver killed before InitProducerId",
    "driver-killed-after-init": "driver killed after InitProducerId",
    "driver-killed-mid-send": "driver killed mid-send",
    "driver-killed-after-send": "driver killed after the last send",
    "driver-killed-after-offsets": "driver killed after the offsets",
    "driver-killed-before-end-txn": "driver killed after the ledger record, before EndTxn",
    "end-txn-request-lost": "EndTxn request lost",
    "end-txn-response-lost": "EndTxn response lost",
    "end-txn-late": "EndTxn held, then released after a takeover",
    "driver-killed-after-commit": "driver killed after commit, before Spark's commit log",
    "commit-log-deleted": "Spark's commits/<b> deleted",
    "executor-killed": "executor killed",
    "executor-out-of-memory": "executor out of memory",
    "task-raises": "a task raises",
    "stage-retried": "stage retried",
    "stage-retried-unrepeatable": "executor killed behind a shuffle that is not repeatable, when "
    "some tasks have sent",
    "persisted-blocks-lost": "executor killed that held a part of a persisted frame",
    "speculative-copy": "speculative copy of a task",
    "lease-connection-lost": "connection to the sequencer lost while a lease is held",
    "lease-overdue": "lease overdue",
    "second-hello": "second hello of an attempt",
    "sequencer-token-wrong": "wrong or old token at the sequencer",
    "sequencer-garbage": "garbage frames at the sequencer",
    "sequencer-unreachable": "sequencer unreachable from the executors",
    "executor-frozen": "executor frozen; its Produce comes when the batch has run again",
    "produce-response-lost": "Produce response lost",
    "ledger-leader-deposed": "ledger leader cut off from the controllers, but not from clients",
    "leader-moves": "partition leader moves mid-transaction",
    "coordinator-dies-init": "coordinator dies during init",
    "coordinator-dies-send": "coordinator dies during send",
    "coordinator-dies-end": "coordinator dies during end",
    "broker-restart": "broker restart",
    "rolling-restart": "rolling restart",
    "all-brokers-restart": "all brokers restart",
    "transaction-state-below-min-isr": "__transaction_state below min ISR",
    "output-below-min-isr": "output below min ISR",
    "run-driver-killed": "under onceward run: driver killed alone, and by a fault point in commit",
    "run-jvm-killed": "under onceward run: the driver's JVM killed",
    "run-connections-lost": "under onceward run: connections to the broker reset at EndTxn",
    "run-terminated": "under onceward run: SIGTERM in mid-batch",
    "run-ended-at-once": "under onceward run: SIGTERM twice, with a transaction open",
    "run-taken-over": "under onceward run: a second copy takes the pipeline over",
    "observers-broken": "metrics: a scraper and a push gateway that hang, a watcher that hangs and "
    "one that fails",
    "transaction-times-out": "transaction times out while sending",
    "timeout-above-maximum": "transaction timeout above the broker's maximum",
    "record-too-large": "record larger than the broker takes, in the middle of a batch",
    "empty-batch": "empty batch",
    "watermark-batch": "only-watermark batch",
    "avro-poison": "avro: a record that is not framed, or not what its schema says",
    "json-poison": "json: a record that is no object of JSON, or not what the schema says",
    "avro-unknown-id": "avro: a schema id that is new to the query, or to the registry",
    "avro-registry-away": "avro: the registry does not answer, with and without an id that is new",
    "avro-registry-replaced": "avro: the registry has another schema under a known id, or none",
    "epoch-rollover": "epoch rollover (32,767)",
    "producer-id-expired": "producer id expired",
    "transactional-id-expired": "transactional id expired",
    "source-topics-appear": "topics that a pattern finds are created in mid-run",
    "source-partitions-added": "partitions added to the source",
    "sink-partitions-added": "partitions added to the output",
    "source-topic-recreated": "source topic deleted and created again",
    "offsets-expired": "source offsets expired",
    "sink-topic-deleted": "output topic deleted",
    "ledger-deleted": "ledger deleted",
    "ledger-truncated": "ledger truncated",
    "group-offsets-moved": "group offsets moved by hand",
    "checkpoint-deleted": "checkpoint deleted",
    "checkpoint-truncated": "checkpoint truncated file by file",
    "checkpoint-restored": "checkpoint restored from an older copy",
    "function-calls-two-sinks": "a function calls two sinks under one pipeline id, or one twice",
    "function-writes-several-frames": "a function writes several frames, and one of them fails",
    "function-skips-batches": "a function skips batches",
    "function-keeps-an-error": "a function keeps the sink's error to itself",
    "same-id-twice": "same pipeline id started twice",
    "zombie-driver": "zombie driver resumed",
    "two-on-one-checkpoint": "two pipelines on one checkpoint",
    "ids-mixed-up": "two pipeline ids mixed up",
    "acl-denied": "ACL denied, each resource in turn",
    "wrong-password": "wrong password",
    "untrusted-certificate": "untrusted certificate, or for another host",
    "token-expiring": "token expiring",
    "brokers-upgraded": "feature transaction.version raised from 1 to 2 under load",
    "database-driver-killed": "database: driver killed before, in and after its transaction",
    "database-commit-late": "database: COMMIT without an answer, carried out after somebody has "
    "looked",
    "database-session-hangs": "database: a session hangs with the row's lock",
    "database-two-owners": "database: an older copy goes on staging",
    "database-staging-left": "database: staging left by a crash",
    "database-staging-emptied": "database: staged rows lost by a crash of the server",
    "database-task-twice": "database: a task stages its rows twice",
    "database-column-unfit": "database: target column missing or too narrow",
    "database-load-warns": "database: MySQL's LOAD DATA LOCAL changes or leaves out what a strict "
    "mode refuses",
    "database-other-unique-key": "database: an upsert meets another unique index of its table",
    "database-keys-alike": "database: keys that differ are the same to the table's collation",
    "database-lock-waited-for": "database: a lock is waited for in vain within the transaction "
    "that decides",
    "database-table-changes": "database: the table is changed between staging and decision",
    "prepared-driver-killed": "database, xa: driver killed between the decision and the commits",
    "prepared-late": "database, xa: a task prepares when its attempt is over",
    "prepared-ended": "database, xa: somebody else commits or rolls back what is prepared",
    "prepared-failover": "database, xa: a standby is promoted that had not heard of the COMMIT",
    "prepared-none-kept": "database, xa: a server that keeps no, or not enough, prepared "
    "transactions",
    "prepared-waiting": "database, xa: tasks of a batch wait for each other",
    "write-ahead-driver-killed": "write-ahead: driver killed around the decision and around a "
    "delivery",
    "write-ahead-progress-unanswered": "write-ahead: the ledger's answer after a delivery lost",
    "write-ahead-target-down": "write-ahead: the target is down, for a while and for good",
    "write-ahead-poison": "write-ahead: rows that the target will never take",
    "write-ahead-older-copy": "write-ahead: an older copy goes on delivering",
    "write-ahead-rows-lost": "write-ahead: stored rows gone, cut or changed between decision and "
    "delivery",
    "write-ahead-store-apart": "write-ahead: driver and executors do not see the same store",
    "upsert-late-write": "upsert: a write of an older copy comes late",
    "upsert-row-unfit": "upsert: a row without a key, a version or a known operation",
    "upsert-key-of-others": "upsert: somebody else's value lies under a key",
    "upsert-ledger-lost": "upsert: the ledger begins anew, and the target does not",
    "upsert-server-down": "upsert: the server crashes, and comes back",
    "upsert-lost": "upsert: the target has lost what was written, or an alias is moved",
    "upsert-driver-killed": "upsert: driver killed around the decision and around a write",
    "registry-down": "schema registry: down, or killed and started again",
    "registry-slow": "schema registry: silent, or a byte at a time",
    "registry-failing": "schema registry: 5xx, or too many requests",
    "registry-nonsense": "schema registry: answers what makes no sense",
    "registry-bomb": "schema registry: an answer that is too large, packed or too deep",
    "registry-replaced": "schema registry: another one, whose ids mean other schemas",
    "files-driver-killed": "files: driver killed around the decision, and between two renames",
    "lake-published-again": "Delta, Iceberg: an older copy publishes a batch that the table has",
    "lake-lost": "Delta, Iceberg: what was prepared is gone, or the table is another one",
    "lake-ledger-restored": "Delta, Iceberg: the ledger is put back from an older copy, and the "
    "table is not",
    "lake-driver-killed": "Delta, Iceberg: driver killed around the decision, and behind the "
    "commit of the table",
    "files-published-in-part": "files: a death between two renames",
    "files-two-publishers": "files: two copies publish the same batch",
    "files-taken-by-readers": "files: readers take away what is published before the ledger says so",
    "files-lost": "files: prepared files are gone, or cut short",
    "files-down": "files: a file system that fails, for a moment or for good",
    "files-late-task": "files: a task that was given up writes on",
    "files-leftovers": "files: what crashes leave, beside another pipeline's",
    "files-cannot-rename": "files: a file system that cannot rename in one step",
    "fan-out-half-published": "fan-out: a death between the publishing of two targets",
    "fan-out-driver-killed": "fan-out: driver killed around the decision and while it publishes",
    "dead-letters-killed": "dead letters: a replay killed at each of its steps",
    "dead-letters-commit-unanswered": "dead letters: the commit of a replay gets no answer, "
    "carried out or not",
    "dead-letters-two-replays": "dead letters: a second replay is started beside the first",
    "source-driver-killed": "a source of one's own: driver killed between offset log and commit "
    "log, again and again",
    "source-range-changed": "a source of one's own: other rows for a range that is logged",
    "source-replaced": "a source of one's own: another one under the same name; a file truncated "
    "or rotated",
    "source-ids-late": "a source of one's own: ids that become visible out of order",
    "source-fails": "a source of one's own: it raises, answers late, in part or not at all",
    "changes-driver-killed": "changes of MySQL: driver killed in chunks, at the hand-over, in "
    "long transactions",
    "sparks-own-sink": "Spark's own sink under the same kills is reported as duplicating",
}
"""Every fault that a test may show, and must: ``tests/tidy`` looks for one without a test."""

INVALID = "INVALID"
_NEWEST = "4.3.1"
# the property under which a report carries them from the worker that ran the test
_SHOWN = "faults shown"


def invalid(why: str) -> NoReturn:
    """The fault that this test is about did not happen: it neither passes nor accuses the
    product.
    """
    pytest.fail(f"{INVALID}: {why}")


def fired(condition: object, why: str) -> None:
    """Unless ``condition`` holds the fault has not happened: INVALID."""
    if not condition:
        invalid(why)


def is_invalid(report: pytest.TestReport) -> bool:
    """By what was raised, not by the text around it: a test's own source may speak of invalidity,
    too.
    """
    crash = getattr(report.longrepr, "reprcrash", None)
    return report.failed and f"{INVALID}: " in (
        report.longreprtext if crash is None else crash.message
    )


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(_Table(), "onceward-fault-table")


def pytest_report_teststatus(report: pytest.TestReport) -> tuple[str, str, str] | None:
    if report.when == "call" and is_invalid(report):
        return "invalid", "I", INVALID
    return None


class _Table:
    """Collects the outcomes of the tests that carry the ``fault`` marker."""

    def __init__(self) -> None:
        self._outcomes: dict[str, dict[str, list[str]]] = defaultdict(lambda: defaultdict(list))

    @pytest.hookimpl(hookwrapper=True)
    def pytest_runtest_makereport(self, item: pytest.Item) -> Any:
        report: pytest.TestReport = (yield).get_result()
        marks = list(item.iter_markers("fault"))
        if not marks or not (report.when == "call" or report.failed or report.skipped):
            return
        shown = [name for mark in marks for name in mark.args]
        report.user_properties.append(
            (_SHOWN, {"faults": shown, "version": _broker_version(item)})
        )

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """In the process that prints the table, wherever the test ran."""
        for name, shown in report.user_properties:
            if name == _SHOWN:
                outcome = INVALID if is_invalid(report) else report.outcome
                for fault in shown["faults"]:
                    self._outcomes[fault][shown["version"]].append(outcome)

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        named = {
            name for item in items for mark in item.iter_markers("fault") for name in mark.args
        }
        if unknown := named - set(FAULTS):
            raise pytest.UsageError(f"no such fault in tests/fault_table.py: {sorted(unknown)}")

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        for report in terminalreporter.stats.get(
            "invalid", []
        ):  # pytest itself shows those of kinds that it knows
            terminalreporter.section(f"{INVALID}: {report.nodeid}")
            terminalreporter.write_line(report.longreprtext)
        if not self._outcomes:
            return
        versions = sorted(
            {version for by_version in self._outcomes.values() for version in by_version}
        )
        terminalreporter.section("faults")
        terminalreporter.write_line(f"{'':72}" + "".join(f"{version:>16}" for version in versions))
        for fault, text in FAULTS.items():
            if fault in self._outcomes:
                cells = [_cell(self._outcomes[fault][version]) for version in versions]
                terminalreporter.write_line(
                    f"{text[:71]:72}" + "".join(f"{cell:>16}" for cell in cells)
                )


def _broker_version(item: pytest.Item) -> str:
    """The Kafka release under a test: of its cluster, or as its parameters name it; ``-`` without
    a broker.
    """
    values = [
        *getattr(item, "funcargs", {}).values(),
        *getattr(getattr(item, "callspec", None), "params", {}).values(),
    ]
    for value in values:
        if isinstance(value, LocalKafka):
            return value.version
        if isinstance(value, str) and (value.endswith("39") or value.startswith("3.9")):
            return "3.9.1"
    return _NEWEST if item.get_closest_marker("broker") else "-"


def _cell(outcomes: list[str]) -> str:
    for bad in ("failed", INVALID, "skipped"):
        if bad in outcomes:
            return f"{outcomes.count(bad)} {bad}"
    return f"{len(outcomes)} passed" if outcomes else ""
