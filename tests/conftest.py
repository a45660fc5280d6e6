"""Fixtures of every suite: two brokers, one Spark session, topics, and a reader that is not our
own client.

Brokers and Spark are started when the first test asks for them and serve the whole run; a test
keeps to topics of its own (`topic`). A test that kills brokers starts a `LocalKafka` of its own.
"""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import (
    Consumer,
    IsolationLevel,
    KafkaError,
    KafkaException,
    Message,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient, NewTopic, OffsetSpec
from hypothesis import HealthCheck, settings

import tiers
from onceward import checkpointing, spark_conf
from onceward_testing import (
    LocalKafka,
    LocalMySQL,
    LocalOpenSearch,
    LocalPostgres,
    LocalRegistry,
    LocalS3,
    s3a_jars,
)
from onceward_testing.kafka_distribution import NEWEST_VERSION
from onceward_testing.mysql_servers import NEWER_MYSQL_VERSION, newer_mysql_is_here
from support.kept_clients import client, keeping, reader
from support.lake_packages import LAKE_PACKAGES

pytest_plugins = ["fault_table", "support.no_java"]

READ_TIMEOUT_SECONDS = 60
MARKERS_SECONDS = 3
LEADER_TIMEOUT_SECONDS = 60
NOT_LEADING_YET = {
    KafkaError.LEADER_NOT_AVAILABLE, KafkaError.NOT_LEADER_FOR_PARTITION,
    KafkaError.UNKNOWN_TOPIC_OR_PART,
    KafkaError.FENCED_LEADER_EPOCH, KafkaError.UNKNOWN_LEADER_EPOCH,
    KafkaError.OFFSET_NOT_AVAILABLE,
}  # fmt: skip
# On a machine with other work to do, an example takes longer than hypothesis allows.
BUSY: Any = {"deadline": None, "suppress_health_check": [HealthCheck.too_slow]}
settings.register_profile("quick", max_examples=40, **BUSY)
settings.register_profile("thorough", max_examples=100, **BUSY)  # what make test-all asks for
settings.load_profile("quick")

# A JVM of a test is gone before the second compiler has paid for itself.
os.environ.setdefault("JDK_JAVA_OPTIONS", "-XX:TieredStopAtLevel=1")

IMPATIENT = {"transaction.abort.timed.out.transaction.cleanup.interval.ms": 200}


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Function]) -> None:
    """Marks each test with its tier and with what it stands on, computed from facts: see
    ``tiers``. Before any of them is left out.
    """
    for item in items:
        facts = tiers.facts_of(item)
        item.add_marker(tiers.tier_of(facts))
        if facts.broker:
            item.add_marker(pytest.mark.broker)
        if facts.spark:
            item.add_marker(pytest.mark.spark)
    config.stash[tiers.COLLECTED] = tiers.collected(items)


def pytest_collection() -> None:
    """Collect tests without collecting garbage: hardly any of these objects dies before the
    end.
    """
    gc.disable()


def pytest_collection_finish() -> None:
    """Exempt what is there by now, thousands of tests and their modules, from every later
    collection of garbage.

    Otherwise the fast tests take an eighth longer.
    """
    gc.enable()
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session")
def kafka() -> Iterator[LocalKafka]:
    """One node of 4.3.1: transaction version 2.

    It serves the tests that need a proxy, too (those heal it, and the others go around it), and
    looks for overdue transactions five times a second, so that a test of these waits for nothing
    and needs no broker of its own.
    """
    version = os.environ.get("ONCEWARD_TEST_KAFKA", NEWEST_VERSION)  # make matrix KAFKA=…
    with (
        LocalKafka(version=version, proxied=True, properties=IMPATIENT) as cluster,
        keeping(cluster.bootstrap_servers),
    ):
        yield cluster


@pytest.fixture(scope="session")
def postgres() -> Iterator[LocalPostgres]:
    """One server for all tests of a worker; each takes a table, or a pipeline, of its own."""
    with LocalPostgres({"max_prepared_transactions": "64"}) as server:
        yield server


@pytest.fixture(scope="session")
def mysql() -> Iterator[LocalMySQL]:
    """MySQL 8.0, in the same way."""
    with LocalMySQL() as server:
        yield server


@pytest.fixture(scope="session")
def newer_mysql() -> Iterator[LocalMySQL]:
    """A MySQL from 8.0.30 on, which keeps what is prepared from harm: the one that is unpacked in
    MYSQL_HOME, or 8.0.33, once that is fetched.
    """
    given = os.environ.get("MYSQL_HOME")
    if given is None and not newer_mysql_is_here():
        pytest.skip(
            "needs MySQL 8.0.30 or later: make servers fetches one; or set MYSQL_HOME to "
            "another's folder"
        )
    with (
        LocalMySQL(home=Path(given))
        if given
        else LocalMySQL(version=NEWER_MYSQL_VERSION) as server
    ):
        yield server


@pytest.fixture(scope="session")
def mariadb() -> Iterator[LocalMySQL]:
    """MariaDB, in the same way."""
    with LocalMySQL("mariadb") as server:
        yield server


@pytest.fixture(scope="session")
def binlog_mysql() -> Iterator[LocalMySQL]:
    """A MySQL whose changes can be read. Its binlogs are the tests' to rotate, purge and reset."""
    settings = {"gtid-mode": "ON", "enforce-gtid-consistency": "ON", "binlog-row-metadata": "FULL"}
    with LocalMySQL("mysql", {"server-id": "1", "log-bin": "binlog", **settings}) as server:
        yield server


@pytest.fixture(scope="session")
def binlog_mariadb() -> Iterator[LocalMySQL]:
    """A MariaDB, in the same way."""
    settings = {
        "binlog-format": "ROW",
        "binlog-row-metadata": "FULL",
        "slave-connections-needed-for-purge": "0",
    }
    with LocalMySQL("mariadb", {"server-id": "1", "log-bin": "binlog", **settings}) as server:
        yield server


@pytest.fixture(scope="session")
def opensearch() -> Iterator[LocalOpenSearch]:
    """One node; each test takes an index of its own."""
    with LocalOpenSearch() as server:
        yield server


@pytest.fixture(scope="session")
def registry() -> Iterator[LocalRegistry]:
    """A schema registry that forgets nothing; each test takes subjects, and names of records, of
    its own.
    """
    with LocalRegistry(durable=True) as server:
        yield server


@pytest.fixture(scope="session")
def kafka39() -> Iterator[LocalKafka]:
    """The same of 3.9.1: transaction version 1."""
    with (
        LocalKafka(version="3.9.1", proxied=True, properties=IMPATIENT) as cluster,
        keeping(cluster.bootstrap_servers),
    ):
        yield cluster


@pytest.fixture(scope="session")
def three_nodes() -> Iterator[LocalKafka]:
    """Three nodes of 4.3.1, for tests that kill none of them."""
    with LocalKafka(nodes=3) as cluster, keeping(cluster.bootstrap_servers):
        yield cluster


@pytest.fixture(scope="session")
def three_nodes39() -> Iterator[LocalKafka]:
    """Three nodes of 3.9.1."""
    with LocalKafka(nodes=3, version="3.9.1") as cluster, keeping(cluster.bootstrap_servers):
        yield cluster


@pytest.fixture(
    scope="session",
    params=[pytest.param("kafka", id="4.3.1"), pytest.param("kafka39", id="3.9.1")],
)
def any_kafka(request: pytest.FixtureRequest) -> LocalKafka:
    """Each of the two, one after the other: for what must hold in both transaction versions."""
    return request.getfixturevalue(request.param)


@pytest.fixture(scope="session")
def new_topic() -> Callable[..., str]:
    """`new_topic(bootstrap_servers, partitions=1, **config)` makes a topic with a name of its own
    and returns it.

    It keeps what is written: the records of many tests are years old by their timestamps, and the
    broker's retention, which looks 30 s after its start and every 5 minutes then, would delete
    them between two lines of a test.
    """

    def make(
        bootstrap_servers: str, partitions: int = 1, *, prefix: str = "t", **config: object
    ) -> str:
        name = f"{prefix}-{uuid.uuid4().hex[:12]}"
        settings = {
            key.replace("_", "."): str(value)
            for key, value in {"retention_ms": -1, **config}.items()
        }
        admin = client(AdminClient, bootstrap_servers)
        admin.create_topics([NewTopic(name, num_partitions=partitions, config=settings)])[
            name
        ].result(30)
        _wait_for_leaders(admin, name, partitions)
        return name

    return make


@pytest.fixture
def topic(request: pytest.FixtureRequest, new_topic: Callable[..., str]) -> Callable[..., str]:
    """`topic(partitions=1, **config)` makes a topic on `kafka`; configs in Python spelling (`a_b`
    = `a.b`).
    """

    def make(partitions: int = 1, **config: Any) -> str:
        return new_topic(request.getfixturevalue("kafka").bootstrap_servers, partitions, **config)

    return make


@pytest.fixture(scope="session")
def read_committed() -> Callable[..., list[Message]]:
    """`read_committed(bootstrap_servers, topic)`: every visible message, by partition and
    offset.
    """
    return lambda bootstrap_servers, topic: _read(bootstrap_servers, topic, "read_committed")


@pytest.fixture(scope="session")
def read_uncommitted() -> Callable[..., list[Message]]:
    """The same with `read_uncommitted`: what was appended, aborted records included."""
    return lambda bootstrap_servers, topic: _read(bootstrap_servers, topic, "read_uncommitted")


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """One `local[2]` session for the run, with the settings that users are told to take."""
    from pyspark.sql import SparkSession

    folder = tmp_path_factory.mktemp("spark")
    settings = {
        **spark_conf(*LAKE_PACKAGES),
        **checkpointing(local_disk=True).spark_conf,
        "spark.pyspark.python": sys.executable,
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.memory": "1g",
        "spark.driver.extraJavaOptions": f"-Dderby.system.home={folder} -XX:+UseSerialGC",
        # A test loses a shuffle, for which Spark disowns the one block manager there is. From then
        # on its heartbeats fail, and after 60 of them, ten minutes, the JVM would exit with status
        # 56 in the middle of another test.
        "spark.executor.heartbeat.maxFailures": "1000000",
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.streaming.checkpointLocation": str(folder / "checkpoints"),
        "spark.sql.warehouse.dir": str(folder / "warehouse"),
        "spark.local.dir": str(folder / "local"),
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.log.level": "ERROR",
    }
    settings["spark.jars"] += "," + ",".join(map(str, s3a_jars()))
    builder = SparkSession.builder.master("local[2]").appName("onceward-tests")
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("PYSPARK_PYTHON", sys.executable)
        environment.setenv("SPARK_LOCAL_IP", "127.0.0.1")
        session = builder.config(map=settings).getOrCreate()
        yield session
        _end(session)


@pytest.fixture(scope="session")
def lake(spark: Any, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A session beside that one, with Delta's extension and catalogs for Delta and Iceberg, as
    their users have it.

    Extensions are Spark's to set when the first session starts. That one shall be as it is for
    everybody else, so the context is told of them for as long as this one is made.
    """
    from pyspark.sql import SparkSession

    if not LAKE_PACKAGES:
        pytest.skip("neither Delta nor Iceberg was run with this Spark")
    jvm, context = spark._jvm, spark.sparkContext._jsc.sc()
    sessions = jvm.org.apache.spark.sql.classic.SparkSession
    extensions = "spark.sql.extensions"
    first = spark._jsparkSession
    sessions.clearDefaultSession()
    sessions.clearActiveSession()
    context.conf().set(extensions, "io.delta.sql.DeltaSparkSessionExtension")
    try:
        session = SparkSession(
            spark.sparkContext, sessions.builder().sparkContext(context).getOrCreate()
        )
    finally:
        context.conf().remove(extensions)
        sessions.setDefaultSession(first)
        sessions.setActiveSession(first)
    for name, value in {
        "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
        "spark.databricks.delta.snapshotPartitions": "1",
        "spark.sql.catalog.lake": "org.apache.iceberg.spark.SparkCatalog",
        "spark.sql.catalog.lake.type": "hadoop",
        "spark.sql.catalog.lake.warehouse": str(tmp_path_factory.mktemp("lake")),
        "spark.sql.shuffle.partitions": "2",
    }.items():
        session.conf.set(name, value)
    return session


@pytest.fixture(scope="session")
def s3(spark: Any) -> Iterator[LocalS3]:
    """A real store, which that session reaches."""
    with LocalS3() as store:
        for name, value in store.spark_settings.items():
            spark.sparkContext._jsc.hadoopConfiguration().set(
                name.removeprefix("spark.hadoop."), value
            )
        yield store


@pytest.fixture
def in_the_lake(lake: Any) -> Iterator[None]:
    """Inside, that session is the active one, as it is inside a batch of a query of it."""
    sessions = lake._jvm.org.apache.spark.sql.classic.SparkSession
    before = sessions.getActiveSession()
    sessions.setActiveSession(lake._jsparkSession)
    yield
    sessions.setActiveSession(before.get())


def _end(session: Any) -> None:
    """Stops the session and its JVM: by itself, PySpark's JVM would stay until the interpreter
    ends.
    """
    from pyspark import SparkContext

    for query in session.streams.active:
        query.stop()
    gateway = SparkContext._gateway
    session.stop()
    process = gateway.proc
    gateway.shutdown()
    process.stdin.close()
    try:
        process.wait(30)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    SparkContext._gateway = SparkContext._jvm = None


def _wait_for_leaders(admin: AdminClient, topic: str, partitions: int) -> None:
    """A created topic is not yet known to every broker; the first reader or writer should not have
    to care.

    A broker may be told of as the leader and not lead yet, so the leader itself is asked, too.
    """
    deadline = time.monotonic() + LEADER_TIMEOUT_SECONDS
    while time.monotonic() < deadline:
        found = admin.list_topics(topic, timeout=10).topics[topic]
        if (
            len(found.partitions) == partitions
            and all(p.leader >= 0 for p in found.partitions.values())
            and _ends(admin, topic, list(found.partitions), IsolationLevel.READ_UNCOMMITTED)
            is not None
        ):
            return
        time.sleep(0.02)
    raise AssertionError(f"topic {topic} has no leaders for its {partitions} partitions")


def _ends(
    admin: AdminClient, topic: str, partitions: list[int], isolation: IsolationLevel
) -> list[int] | None:
    """The end of each partition; None as long as one of them has no leader that leads."""
    asked = admin.list_offsets(
        {TopicPartition(topic, p): OffsetSpec.latest() for p in partitions},
        isolation_level=isolation,
    )
    try:
        return [answer.result(30).offset for answer in asked.values()]
    except KafkaException as error:
        if error.args[0].code() in NOT_LEADING_YET:
            return None
        raise


def _read(bootstrap_servers: str, topic: str, isolation_level: str) -> list[Message]:
    settings = {
        "group_id": "tests",  # librdkafka wants one; nobody joins it
        "isolation_level": isolation_level,
        "auto_offset_reset": "earliest",
        "enable_auto_commit": False,
        "enable_partition_eof": True,
        "fetch_queue_backoff_ms": 5,
        # the end of a partition is an empty answer, for which the broker waits so long
        "fetch_wait_max_ms": 20,
    }
    with reader(bootstrap_servers, **settings) as consumer:
        partitions = consumer.list_topics(topic, timeout=30).topics[topic].partitions
        if isolation_level == "read_committed":
            _wait_for_markers(bootstrap_servers, topic, list(partitions))
        consumer.assign([TopicPartition(topic, partition, 0) for partition in partitions])
        return sorted(
            _until_every_end(consumer, len(partitions)), key=lambda m: (m.partition(), m.offset())
        )


def _wait_for_markers(bootstrap_servers: str, topic: str, partitions: list[int]) -> None:
    """Lets a commit that is answered become visible: the coordinator answers before it writes the
    markers.

    A transaction that a test keeps open on purpose is not waited for any longer.
    """
    admin = client(AdminClient, bootstrap_servers)
    admin.list_topics(
        topic, timeout=30
    )  # it may know the topic from before somebody added partitions, or made it anew
    deadline = time.monotonic() + MARKERS_SECONDS
    while time.monotonic() < deadline:
        stable = _ends(admin, topic, partitions, IsolationLevel.READ_COMMITTED)
        if stable is not None and stable == _ends(
            admin, topic, partitions, IsolationLevel.READ_UNCOMMITTED
        ):
            return
        time.sleep(0.05)


def _until_every_end(consumer: Consumer, partition_count: int) -> Iterator[Message]:
    ended: set[int] = set()
    while len(ended) < partition_count:
        message = consumer.poll(READ_TIMEOUT_SECONDS)
        assert message is not None, (
            f"no message and no end within {READ_TIMEOUT_SECONDS} s; ended: {sorted(ended)}"
        )
        error = message.error()
        if error is None:
            yield message
        elif error.code() == KafkaError._PARTITION_EOF:
            ended.add(message.partition())
        else:
            raise KafkaException(error)
