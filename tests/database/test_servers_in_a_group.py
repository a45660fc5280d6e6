"""``DatabaseSink`` where servers are several: Galera, Group Replication, a replica.

Their members are real. One that lags is one that holds a lock against what the others send it.
"""

from __future__ import annotations

import contextlib
import shutil
import socket
import threading
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
import pymysql
import pytest
from database_place import MySQLPlace, Place
from test_others_at_the_database import Running, stored, values

from onceward.errors import LedgerUnreachable, SendFailed, ServerMisconfigured
from onceward.sql.sink.prepared_target import PreparedTarget
from onceward_testing import LocalMySQL
from onceward_testing.free_ports import free_ports
from onceward_testing.guarded_process import GuardedProcess
from onceward_testing.local_server import give_to_user
from onceward_testing.mysql_servers import _NEWER_MYSQL, NEWER_MYSQL_VERSION
from onceward_testing.server_files import archive, fetch_library
from onceward_testing.sink_contract import batch
from support.mysql_client import sql_at

in_a_group = pytest.mark.lengthy("chaos")


class GaleraNode(LocalMySQL):
    """A node of a cluster, whose first one is ``first``."""

    def __init__(self, first: GaleraNode | None = None) -> None:
        self.group_port, receives = free_ports(2)
        self._first = first
        super().__init__("mariadb", {
            "wsrep_on": "ON", "binlog_format": "ROW", "innodb_autoinc_lock_mode": "2",
            "wsrep_cluster_address": f"gcomm://{f'127.0.0.1:{first.group_port}' if first else ''}",
            "wsrep_cluster_name": "group", "wsrep_node_address": f"127.0.0.1:{self.group_port}",
            "wsrep_provider_options": f"gmcast.listen_addr=tcp://127.0.0.1:{self.group_port};"
            f"base_port={self.group_port};ist.recv_addr=127.0.0.1:{receives};gcache.size=32M",
        })  # fmt: skip
        if first is not None:
            self._password = first.password

    def _spawn(self, log: Path) -> GuardedProcess:
        library = self.folder / "libgalera_smm.so"
        shutil.copy(fetch_library(library.name), library)
        give_to_user(library)
        self._settings["wsrep_provider"] = str(library)
        if self._first is not None:
            # Both were made alike: so it has what the first one had then, and asks for no copy.
            ((_, group),) = sql_at(self._first.url, "SHOW STATUS LIKE 'wsrep_local_state_uuid'")
            ((_, at),) = sql_at(self._first.url, "SHOW STATUS LIKE 'wsrep_last_committed'")
            state = self._data / "grastate.dat"
            state.write_text(
                f"# GALERA saved state\nversion: 2.1\nuuid: {group}\nseqno: {at}\n"
                "safe_to_bootstrap: 0\n"
            )
            give_to_user(state)
        return super()._spawn(log)


class GroupMember(LocalMySQL):
    """A member of a group of one primary."""

    def __init__(self, plugins: Path, first: GroupMember | None = None, weight: int = 50) -> None:
        (self.group_port,) = free_ports(1)
        seed = first.group_port if first is not None else self.group_port
        group = {
            "group_name": "0c30eabe-0e4a-4a3c-8f6e-1c1f3c2b7a11", "start_on_boot": "OFF",
            "local_address": f"127.0.0.1:{self.group_port}", "group_seeds": f"127.0.0.1:{seed}",
            "ip_allowlist": "127.0.0.1/8", "member_weight": str(weight),
        }  # fmt: skip
        super().__init__("mysql", {
            "plugin_dir": str(plugins), "plugin_load_add": "group_replication.so",
            "report_host": "127.0.0.1", "performance-schema": "1",
            **{f"loose-group_replication_{name}": value for name, value in group.items()},
        }, version=NEWER_MYSQL_VERSION, binlog=True)  # fmt: skip
        if first is not None:
            self._password = first.password
        self._is_first = first is None

    def start(self) -> None:
        super().start()
        begins = "SET GLOBAL group_replication_bootstrap_group = "
        if self._is_first:
            sql_at(self.url, begins + "ON")
        sql_at(
            self.url,
            "CHANGE REPLICATION SOURCE TO SOURCE_USER = 'onceward', SOURCE_PASSWORD = "
            f"'{self.password}' FOR CHANNEL 'group_replication_recovery'",
        )
        sql_at(self.url, "START GROUP_REPLICATION")
        sql_at(self.url, begins + "OFF")
        online = (
            "SELECT COUNT(*) FROM performance_schema.replication_group_members "
            "WHERE member_port = %s AND member_state = 'ONLINE'"
        )
        while sql_at(self.url, online, self.port) != [(1,)]:
            pass


class Address:
    """What leads to one of several servers, as a load balancer does; connections to the others
    are cut."""

    def __init__(self, server: LocalMySQL) -> None:
        self._to = server.port
        self._open: list[socket.socket] = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def lead_to(self, server: LocalMySQL) -> None:
        self._to = server.port
        self.cut()

    def cut(self) -> None:
        for each in self._open:
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)

    def __enter__(self) -> Address:
        return self

    def __exit__(self, *raised: object) -> None:
        self._listener.close()
        self.cut()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                try:
                    server = socket.create_connection(("127.0.0.1", self._to))
                except OSError:
                    client.close()
                    continue
                self._open += [client, server]
                for one, other in ((client, server), (server, client)):
                    threading.Thread(target=_carry, args=(one, other), daemon=True).start()


def _carry(one: socket.socket, other: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while said := one.recv(65536):
            other.sendall(said)
    for each in (one, other):
        with contextlib.suppress(OSError):
            each.shutdown(socket.SHUT_RDWR)


@pytest.fixture
def galera() -> Iterator[list[LocalMySQL]]:
    with GaleraNode() as first, GaleraNode(first) as second:
        yield [first, second]


@pytest.fixture
def group(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[LocalMySQL]]:
    """The second one follows as primary when the first one dies; the third is for the majority."""
    plugins = tmp_path_factory.mktemp("plugins")
    with zipfile.ZipFile(archive(_NEWER_MYSQL)) as packed:
        name = next(n for n in packed.namelist() if n.endswith("lib/plugin/group_replication.so"))
        (plugins / "group_replication.so").write_bytes(packed.read(name))
    for folder in (plugins, *plugins.parents[:3]):
        folder.chmod(0o755)
    with (
        GroupMember(plugins) as first,
        GroupMember(plugins, first, weight=90) as second,
        GroupMember(plugins, first) as third,
    ):
        yield [first, second, third]


@pytest.fixture
def place_at(without_spark: Callable[[Place], Place]) -> Callable[[Address, LocalMySQL], Place]:
    """Make the place of a pipeline that reaches the server at that address."""

    def place_at(address: Address, server: LocalMySQL) -> Place:
        place = without_spark(MySQLPlace(server))
        place.url = place.url.replace(f":{server.port}/", f":{address.port}/")
        place.sql("CREATE TABLE {s}.t (value bigint, id bigint AUTO_INCREMENT PRIMARY KEY)")
        return place

    return place_at


@contextlib.contextmanager
def lagging(server: LocalMySQL) -> Iterator[None]:
    """Inside, it carries out nothing that the others have committed."""
    lock = pymysql.connect(
        host="127.0.0.1", port=server.port, user="onceward", password=server.password,
        ssl_disabled=True,
    )  # fmt: skip
    with lock, lock.cursor() as cursor:
        cursor.execute("FLUSH TABLES WITH READ LOCK")
        yield


def written_behind(lag: contextlib.ExitStack, running: Running, rows: pa.Table) -> None:
    """The batch is committed behind what the server lacks, once it has it, and not before."""
    done: list[bool] = []

    def write() -> None:
        # A member that is not promoted yet refuses
        while not done:
            with contextlib.suppress(SendFailed, LedgerUnreachable):
                running.write(rows)
                done.append(True)

    writing = threading.Thread(target=write)
    writing.start()
    writing.join(2)
    assert not done
    lag.close()
    writing.join(120)
    assert done


PlaceAt = Callable[[Address, LocalMySQL], Place]


@in_a_group
@pytest.mark.parametrize("small", [True, False], ids=["by the driver", "by tasks"])
def test_a_node_of_galera_that_lags_has_lost_nothing(
    galera: list[LocalMySQL], place_at: PlaceAt, *, small: bool
) -> None:
    """wsrep_sync_wait is 0 by default: it shows what it has carried out. In a run, and at a
    start."""
    first, second = galera
    with Address(first) as address:
        place = place_at(address, first)
        place.small = small
        running = Running(place)
        running.write(values(1))
        with contextlib.ExitStack() as lag:
            lag.enter_context(lagging(second))
            running.write(values(2))
            address.lead_to(second)
            written_behind(lag, running, values(3))
        with contextlib.ExitStack() as lag:
            lag.enter_context(lagging(first))
            running.write(values(4))
            address.lead_to(first)
            again = Running(place)
            again.number = 3
            written_behind(lag, again, values(4))
        assert stored(place) == [1, 2, 3, 4]


@in_a_group
def test_galera_has_no_prepared_transactions(galera: list[LocalMySQL], place_at: PlaceAt) -> None:
    with Address(galera[0]) as address:
        place = place_at(address, galera[0])
        target = PreparedTarget(place.sink("t", xa=True).settings)
        with contextlib.closing(target), pytest.raises(ServerMisconfigured, match="Galera"):
            target.open(batch(0))
        Running(place).write(values(1))
        assert stored(place) == [1]


@in_a_group
def test_a_primary_of_a_group_that_lags_has_lost_nothing(
    group: list[LocalMySQL], place_at: PlaceAt
) -> None:
    """group_replication_consistency is EVENTUAL by default: it shows what it has carried out."""
    first, second, _ = group
    with Address(first) as address:
        place = place_at(address, first)
        place.small = True
        running = Running(place)
        running.write(values(1))
        with contextlib.ExitStack() as lag:
            lag.enter_context(lagging(second))
            running.write(values(2))
            first.kill()
            address.lead_to(second)
            written_behind(lag, running, values(3))
        place.server = second
        assert stored(place) == [1, 2, 3]


def test_a_replica_that_is_not_promoted_is_not_asked(mysql: LocalMySQL, place_at: PlaceAt) -> None:
    """It lags, and the ledger that it shows is an older one."""
    with Address(mysql) as address:
        place = place_at(address, mysql)
        place.small = True
        writer = f"writer_{place.schema[5:]}"
        place.sql(f"CREATE USER {writer} IDENTIFIED BY '{mysql.password}'")
        for schema in (place.schema, "test"):
            place.sql(f"GRANT ALL ON {schema}.* TO {writer}")
        place.url = place.url.replace("//onceward:", f"//{writer}:")
        running = Running(place)
        running.write(values(1))
        place.sql("SET GLOBAL read_only = 1")
        try:
            address.cut()
            with pytest.raises((SendFailed, LedgerUnreachable), match="read-only"):
                Running(place).target.peek()
        finally:
            place.sql("SET GLOBAL read_only = 0")
        running.write(values(2))
        assert stored(place) == [1, 2]
