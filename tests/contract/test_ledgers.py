"""Every store of the ledger keeps the contract of chains, and each what it says besides."""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, closing, contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import psycopg
import pytest
from chain_contract import ChainContract, P, RestoredContract, Store, append, record

import onceward as ow
from onceward.engine.ledger.chain import Chain
from onceward.engine.ledger.record import RecordState
from onceward.errors import (
    CommitInDoubt,
    ConfigurationError,
    Fenced,
    LedgerUnreachable,
    LedgerUnreadable,
    TransactionTimedOut,
)
from onceward.files import ledger as folder
from onceward.ids import PipelineId
from onceward.kafka.ledger.chain import KafkaChain
from onceward.operate.status import open_ledger
from onceward.sql.ledger import table
from onceward.sql.ledger.database import Session
from onceward.sql.ledger.table import TableChain
from onceward_testing import LocalKafka, LocalMySQL, LocalPostgres
from support.errors import raises
from support.lost_answers import lost_commit, lost_end_txn
from support.mysql_client import sql_at

TAKE_AND_APPEND = """
import random
import sys
import time
from pathlib import Path
from onceward.errors import Fenced
from onceward.ids import BatchId, PipelineId
from onceward.files.ledger import FolderChain
from onceward.engine.ledger.record import LedgerRecord

P, count, appended = PipelineId("p"), int(sys.argv[2]), 0
while appended < count:
    chain = FolderChain(Path(sys.argv[1]), P)
    try:
        newest = chain.take()
        for _ in range(min(5, count - appended)):
            sequence = 0 if newest is None else newest.sequence + 1
            newest = LedgerRecord(P, sequence, BatchId("q", sequence), (), chain.begin(newest), {}, 0)
            chain.append(newest)
            appended += 1
    except Fenced:
        # As whoever starts again does: else they fence each other on a busy machine for ever
        time.sleep(random.random() / 20)
"""


class TestFolder(RestoredContract):
    @pytest.fixture
    def store(self, tmp_path: Path) -> Store:
        return Store(lambda: ow.FolderLedger(tmp_path).chain(P), _unsynced)

    @pytest.fixture
    def copy(self, tmp_path: Path) -> Callable[[], Callable[[], None]]:
        copied = tmp_path.with_name(f"{tmp_path.name}-copy")

        def restore() -> None:
            shutil.rmtree(tmp_path / P)
            shutil.copytree(copied, tmp_path / P)

        def copy() -> Callable[[], None]:
            shutil.copytree(tmp_path / P, copied)
            return restore

        return copy

    def test_old_entries_are_removed_and_cannot_be_won_again(
        self, store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(folder, "_KEPT", 10)
        late = store.chain()
        begun = record(0, late.begin(late.take()))
        chain = store.chain()
        newest = chain.take()
        for _ in range(60):
            newest = append(chain, newest)
        names = os.listdir(tmp_path / P)
        assert len(names) < 25
        assert f"{1:020}.json" not in names, "the slot that the late owner is behind is free again"
        with pytest.raises(Fenced):
            late.append(begun)
        assert store.chain().take() == newest
        assert len(list(store.chain().history(5))) == 5

    def test_of_many_processes_one_wins_each_slot(self, tmp_path: Path) -> None:
        """Each takes the chain and appends as long as it may; what they all wrote is one chain
        without a gap.
        """
        command = [sys.executable, "-c", TAKE_AND_APPEND, str(tmp_path), "40"]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
        workers = [subprocess.Popen(command, env=environment) for _ in range(4)]
        try:
            assert [worker.wait(120) for worker in workers] == [0] * 4
        finally:
            for worker in workers:
                worker.kill()
        history = list(ow.FolderLedger(tmp_path).chain(P).history(10_000))
        assert [found.sequence for found in history] == list(range(len(history)))[::-1]
        assert len({found.attempt for found in history}) == len(history)
        assert len(history) == 160

    def test_an_append_that_arrives_after_its_doubt_was_settled_finds_its_slot_taken(
        self, store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        chain = store.chain()
        first = append(chain, chain.take())
        late: list[tuple[Path, Path]] = []

        def on_its_way(written: Path, target: Path) -> None:
            shutil.copy(written, tmp_path / "late")
            late.append((tmp_path / "late", target))
            raise OSError("no answer yet")

        with monkeypatch.context() as patch:
            patch.setattr(os, "link", on_its_way)
            with pytest.raises(CommitInDoubt):
                chain.append(record(1, chain.begin(first)))
        assert chain.settle() == first
        with pytest.raises(FileExistsError):
            os.link(*late[0])

    def test_an_heir_whose_progress_is_in_doubt_is_not_taken_for_fenced(
        self, store: Store, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        chain = store.chain()
        chain.append(replace(record(0, chain.begin(chain.take())), state=RecordState.DECIDED))
        heir = store.chain()
        decided = heir.take()
        assert decided is not None
        finished = replace(decided, state=RecordState.FINISHED)

        def fails(path: Path) -> None:
            raise OSError("the disk does not answer")

        with monkeypatch.context() as patch:
            patch.setattr(folder, "sync", fails)
            with pytest.raises(CommitInDoubt):
                heir.progress(finished)
        assert heir.settle() == finished

    @pytest.mark.parametrize("somebody_came", [False, True])
    def test_a_doubt_about_settling_is_settled_for_good(
        self, store: Store, monkeypatch: pytest.MonkeyPatch, somebody_came: bool
    ) -> None:
        """Nobody is there but the takeover of who settles; or somebody behind it is."""
        chain = store.chain()
        first = append(chain, chain.take())

        def fails(path: object, *_: object) -> None:
            raise OSError("the disk does not answer")

        for name, place in (("sync", folder), ("link", os), ("sync", folder)):
            with monkeypatch.context() as patch:
                patch.setattr(place, name, fails)
                with pytest.raises(CommitInDoubt):
                    chain.settle()
        if somebody_came:
            newest = store.chain().take()
            with pytest.raises(Fenced):
                chain.settle()
            assert newest == first
        else:
            assert chain.settle() == first
            append(chain, first)

    def test_a_folder_that_is_gone_as_a_whole_may_be_on_a_disk_that_is_not_mounted(
        self, store: Store, tmp_path: Path
    ) -> None:
        chain = store.chain()
        first = append(chain, chain.take())
        disk = tmp_path.with_name(f"{tmp_path.name}-disk")
        tmp_path.rename(disk)
        for asked in (lambda: chain.begin(first), chain.newest, store.chain().must_be_there):
            with raises(LedgerUnreachable):
                asked()
        disk.rename(tmp_path)
        assert chain.newest() == first

    def test_a_chain_that_begins_anew_is_another_one_and_a_copy_is_not(
        self, store: Store, tmp_path: Path
    ) -> None:
        chain = store.chain()
        append(chain, chain.take())
        identity = chain.identity()
        shutil.copytree(tmp_path / P, tmp_path / "copy" / P)
        shutil.rmtree(tmp_path / P)
        copy, anew = ow.FolderLedger(tmp_path / "copy").chain(P), store.chain()
        copy.take()
        anew.take()
        assert copy.identity() == identity != anew.identity()

    def test_who_removes_files_by_their_age_takes_no_identity(
        self, store: Store, tmp_path: Path
    ) -> None:
        chain, file = store.chain(), tmp_path / P / "identity"
        newest = chain.take()
        identity = chain.identity()
        os.utime(file, (0, 0))
        newest = append(chain, newest)
        ages = {each.name: each.stat().st_mtime for each in (tmp_path / P).iterdir()}
        assert ages.pop("identity") + 1 > max(ages.values())
        file.unlink()
        newest = append(chain, newest)
        assert file.read_text() == identity

    def test_a_folder_that_cannot_be_written_is_named(self, tmp_path: Path) -> None:
        (tmp_path / "file").write_text("no folder")
        with raises(LedgerUnreachable):
            ow.FolderLedger(tmp_path / "file").chain(P).take()

    def test_a_disk_that_is_full_is_left_as_it_was(
        self, store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        chain = store.chain()
        first = append(chain, chain.take())
        before = sorted(os.listdir(tmp_path / P))

        def full(_: int) -> None:
            raise OSError(errno.ENOSPC, "No space left on device")

        with monkeypatch.context() as patch:
            patch.setattr(os, "fsync", full)
            for _ in range(3):
                with pytest.raises(LedgerUnreachable, match="No space left"):
                    chain.append(record(1, chain.begin(first)))
            assert sorted(os.listdir(tmp_path / P)) == before
        append(chain, first)

    def test_an_entry_that_cannot_be_read_is_named(self, store: Store, tmp_path: Path) -> None:
        chain = store.chain()
        append(chain, chain.take())
        (tmp_path / P / f"{1:020}.json").write_text("{")
        with raises(LedgerUnreadable):
            store.chain().take()

    @pytest.mark.parametrize("uri", ["file:/a/b", "file:///a/b", "file://localhost/a/b"])
    def test_a_uri_of_a_local_folder_is_that_folder(self, uri: str) -> None:
        """And not one below the folder where the driver happens to be."""
        assert ow.FolderLedger(uri) == ow.FolderLedger("/a/b")

    @pytest.mark.parametrize(
        "path",
        ["", "s3://bucket/ledger", "hdfs://name/ledger", "hdfs:/ledger", "file:ledger", "a:b"],
    )
    def test_what_is_no_local_folder_is_refused(self, path: str) -> None:
        with raises(ConfigurationError):
            ow.FolderLedger(path)
        assert ow.FolderLedger(Path("/a:b")).path == "/a:b"

    def test_another_file_system_is_refused_by_name(
        self, store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        assert folder.file_system_type(tmp_path) in (None, *folder._LOCAL)
        monkeypatch.setattr(folder, "file_system_type", lambda _: "nfs4")
        with raises(ConfigurationError, "nfs4"):
            store.chain().take()


@contextmanager
def _unsynced(chain: Chain, carried_out: bool) -> Iterator[None]:
    """The disk fails: before the entry has its name, or when the folder is to be synced."""
    with pytest.MonkeyPatch.context() as patch:

        def failing(*_: Any) -> None:
            raise OSError("lost on purpose")

        if carried_out:
            patch.setattr(folder, "sync", failing)
        else:
            patch.setattr(os, "link", failing)
        yield


@contextmanager
def _a_client_beside(server: LocalPostgres | LocalMySQL) -> Iterator[Callable[[str], object]]:
    if isinstance(server, LocalMySQL):
        yield partial(sql_at, server.url)
    else:
        with psycopg.connect(server.url, autocommit=True) as connection:
            yield connection.execute


class DatabaseContract(RestoredContract):
    """What a table owes besides; ``server`` has an ``url``."""

    @pytest.fixture
    def ledger(self, server: LocalPostgres | LocalMySQL) -> ow.DatabaseLedger:
        return ow.DatabaseLedger(server.url, table=f"ledger_{uuid.uuid4().hex[:12]}")

    @pytest.fixture
    def store(self, ledger: ow.DatabaseLedger) -> Iterator[Store]:
        chains: list[Chain] = []

        def chain() -> Chain:
            chains.append(ledger.chain(P))
            return chains[-1]

        yield Store(chain, lost_commit)
        for each in chains:
            each.close()

    @pytest.fixture
    def copy(
        self, server: LocalPostgres | LocalMySQL, ledger: ow.DatabaseLedger
    ) -> Iterator[Callable[[], Callable[[], None]]]:
        names = [ledger.table, f"{ledger.table}_batches"]

        def copy() -> Callable[[], None]:
            for name in names:
                execute(f"CREATE TABLE {name}_copy AS SELECT * FROM {name}")  # noqa: S608
            return restore

        def restore() -> None:
            for name in names:
                execute(f"DELETE FROM {name}")  # noqa: S608
                execute(f"INSERT INTO {name} SELECT * FROM {name}_copy")  # noqa: S608

        with _a_client_beside(server) as execute:
            yield copy

    @pytest.mark.fault("database-commit-late")
    def test_a_commit_that_arrives_late_is_waited_for(self, store: Store) -> None:
        """A plain look said "no" here, and then it was carried out."""
        chain = store.chain()
        first = append(chain, chain.take())
        second = record(1, chain.begin(first))
        under_way: list[Session] = []
        with lost_commit(chain, False, under_way), pytest.raises(CommitInDoubt):
            chain.append(second)
        late = threading.Timer(1.0, under_way[0].commit)
        late.start()
        assert chain.settle() == second
        late.join()
        under_way[0].close()

    def test_whoever_looks_disturbs_nobody(self, ledger: ow.DatabaseLedger, store: Store) -> None:
        assert ledger.pipelines() == []
        assert ledger.recent(P) == []
        chain = store.chain()
        first = append(chain, chain.take())
        second = append(chain, first)
        assert ledger.pipelines() == [P]
        assert ledger.recent(P) == [second, first]
        assert ledger.recent(P, 1) == [second]
        append(chain, second)

    def test_the_records_of_the_last_batches_are_kept(
        self, store: Store, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(table, "BATCHES_KEPT", 3)
        chain = store.chain()
        newest = chain.take()
        for _ in range(5):
            newest = append(chain, newest)
        decided = append(chain, newest, RecordState.DECIDED)
        finished = chain.progress(replace(decided, state=RecordState.FINISHED))
        kept = [(found.sequence, found.state) for found in store.chain().history()]
        assert kept == [
            (5, finished.state),
            (5, decided.state),
            (4, finished.state),
            (3, finished.state),
        ]

    def test_a_chain_that_begins_anew_has_no_records_of_another(
        self, store: Store, ledger: ow.DatabaseLedger, server: LocalPostgres | LocalMySQL
    ) -> None:
        chain = store.chain()
        newest = chain.take()
        identity = chain.identity()
        for _ in range(3):
            newest = append(chain, newest)
        with _a_client_beside(server) as execute:
            execute(f"DELETE FROM {ledger.table}")  # noqa: S608
        anew = store.chain()
        assert anew.take() is None
        assert anew.identity() != identity
        first = append(anew, None)
        assert list(anew.history()) == [first]

    def test_who_is_replaced_after_the_look_appends_nothing(
        self, store: Store, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """An append looks first, so that it does not wait for its heir; the update is what
        counts.
        """
        old = store.chain()
        first = append(old, old.take())
        second = record(1, old.begin(first))
        heir = store.chain()
        assert heir.take() == first
        monkeypatch.setattr(TableChain, "_ours", lambda chain: None)
        with pytest.raises(Fenced):
            old.append(second)
        assert heir.peek() == first

    @pytest.mark.fault("database-session-hangs")
    def test_a_session_that_hangs_in_its_transaction_is_ended_by_the_server(
        self, store: Store, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Its machine is gone, and the row is locked."""
        monkeypatch.setattr(table, "_IDLE_MS", 2_000)
        gone = store.chain()
        first = append(gone, gone.take())
        under_way: list[Session] = []
        with lost_commit(gone, False, under_way), pytest.raises(CommitInDoubt):
            gone.append(record(1, gone.begin(first)))
        assert store.chain().take() == first
        under_way[0].close()

    def test_many_create_the_table_at_once(self, ledger: ow.DatabaseLedger) -> None:
        def one(number: int) -> None:
            chain = ledger.chain(PipelineId(f"p{number}"))
            append(chain, chain.take())
            chain.close()

        with ThreadPoolExecutor(8) as many:
            list(many.map(one, range(8)))


class TestDatabase(DatabaseContract):
    """PostgreSQL 17.5."""

    @pytest.fixture
    def server(self, postgres: LocalPostgres) -> LocalPostgres:
        return postgres

    @pytest.fixture
    def hasty(self, postgres: LocalPostgres) -> Iterator[LocalPostgres]:
        """A server that does not wait for its disk, unless it is asked to."""
        with psycopg.connect(postgres.url, autocommit=True) as connection:
            connection.execute("ALTER ROLE postgres SET synchronous_commit = off")
        yield postgres
        with psycopg.connect(postgres.url, autocommit=True) as connection:
            connection.execute("ALTER ROLE postgres RESET synchronous_commit")

    def test_a_decision_outlasts_a_crash_where_commits_are_not_waited_for(
        self, ledger: ow.DatabaseLedger, hasty: LocalPostgres
    ) -> None:
        chain = ledger.chain(P)
        newest = append(chain, chain.take())
        hasty.kill()
        hasty.start()
        assert ledger.chain(P).take() == newest

    def test_a_row_that_was_deleted_does_not_bring_its_owner_back(
        self, ledger: ow.DatabaseLedger, postgres: LocalPostgres
    ) -> None:
        old = ledger.chain(P)
        begun = record(0, old.begin(old.take()))
        with psycopg.connect(postgres.url, autocommit=True) as connection:
            connection.execute(f"DELETE FROM {ledger.table}")  # noqa: S608 — a name of ours
        new = ledger.chain(P)
        new.take()
        with pytest.raises(Fenced):
            old.append(begun)

    def test_a_database_that_is_away_is_named_without_the_password(self) -> None:
        ledger = ow.DatabaseLedger("postgresql://me:a-secret@127.0.0.1:1/none?connect_timeout=2")
        with raises(LedgerUnreachable, "127.0.0.1") as refused:
            ledger.chain(P).take()
        assert "a-secret" not in f"{refused.value} {refused.value!r} {ledger!r}"

    def test_a_login_whose_sessions_only_read_may_look(
        self, ledger: ow.DatabaseLedger, postgres: LocalPostgres
    ) -> None:
        """As that of whoever is on call: it may not own the chain, and is not to."""
        chain = ledger.chain(P)
        append(chain, chain.take())
        url = f"{postgres.url}?options=-cdefault_transaction_read_only%3Don"
        assert len(open_ledger(url=url, table=ledger.table).entries(P)) == 1
        with pytest.raises(LedgerUnreachable, match="read-only"):
            ow.DatabaseLedger(url, ledger.table).chain(P).take()

    @pytest.mark.parametrize(
        "url",
        [
            "",
            "oracle://x/y",
            "jdbc:postgresql://x/y",
            None,
            "postgresql://u:100%a-secret@h/db",
            "postgresql://u:a-secret@h:x/db?",
        ],
    )
    def test_what_is_no_address_is_refused_and_not_repeated(self, url: Any) -> None:
        with pytest.raises((ConfigurationError, LedgerUnreachable)) as refused:
            ow.DatabaseLedger(url).chain(P).take()
        assert "a-secret" not in f"{refused.value!r} {refused.value.__cause__!r}"

    def test_several_hosts_and_options_are_libpqs(self, postgres: LocalPostgres) -> None:
        with psycopg.connect(postgres.url, autocommit=True) as connection:
            connection.execute("CREATE SCHEMA IF NOT EXISTS elsewhere")
        url = (
            postgres.url.replace("127.0.0.1", "127.0.0.1:1,127.0.0.1")
            + "?options=-csearch_path%3Delsewhere"
        )
        name = f"ledger_{uuid.uuid4().hex[:12]}"
        chain = ow.DatabaseLedger(url, table=name).chain(P)
        append(chain, chain.take())
        chain.close()
        assert (
            ow.DatabaseLedger(url, table=name).where
            != ow.DatabaseLedger(postgres.url, table=name).where
        )
        assert (
            ow.DatabaseLedger(postgres.url, table=f"elsewhere.{name}").chain(P).peek() is not None
        )
        assert ow.DatabaseLedger(postgres.url, table=name).chain(P).peek() is None

    def test_a_takeover_outlasts_a_crash_where_commits_are_not_waited_for(
        self, ledger: ow.DatabaseLedger, hasty: LocalPostgres
    ) -> None:
        """Else the chain would be an older owner's again."""
        old, new = ledger.chain(P), ledger.chain(P)
        newest = append(old, old.take())
        new.take()
        hasty.kill()
        hasty.start()
        with pytest.raises(Fenced):
            old.begin(newest)
        new.begin(newest)

    def test_a_connection_that_broke_between_batches_is_replaced(
        self, store: Store, postgres: LocalPostgres
    ) -> None:
        chain = store.chain()
        newest = append(chain, chain.take())
        with psycopg.connect(postgres.url, autocommit=True) as connection:
            connection.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name "
                "LIKE 'onceward-%'"
            )
        append(chain, newest)

    @pytest.mark.parametrize("name", ["", "Ledger", "a b", "a;drop", "a.b.c"])
    def test_what_is_no_table_is_refused(self, name: str) -> None:
        with raises(ConfigurationError, "table="):
            ow.DatabaseLedger("postgresql://x/y", table=name)


class MySQLContract(DatabaseContract):
    def test_a_row_that_was_deleted_does_not_bring_its_owner_back(
        self, ledger: ow.DatabaseLedger, server: LocalMySQL
    ) -> None:
        old = ledger.chain(P)
        begun = record(0, old.begin(old.take()))
        sql_at(server.url, f"DELETE FROM {ledger.table}")  # noqa: S608 — a name of ours
        new = ledger.chain(P)
        new.take()
        with pytest.raises(Fenced):
            old.append(begun)
        new.close()
        old.close()

    def test_a_decision_and_a_takeover_outlast_a_crash(
        self, ledger: ow.DatabaseLedger, server: LocalMySQL
    ) -> None:
        old, new = ledger.chain(P), ledger.chain(P)
        newest = append(old, old.take())
        new.take()
        server.kill()
        server.start()
        with pytest.raises(Fenced):
            old.begin(newest)
        append(new, newest)
        new.close()
        old.close()

    def test_a_connection_that_broke_between_batches_is_replaced(
        self, store: Store, server: LocalMySQL
    ) -> None:
        chain = store.chain()
        newest = append(chain, chain.take())
        _end_sessions(server)
        append(chain, newest)

    def test_a_commit_of_a_session_that_was_ended_is_not_in_doubt(
        self, store: Store, server: LocalMySQL, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The server has rolled it back, and nothing was sent."""
        chain = store.chain()
        first = append(chain, chain.take())
        assert isinstance(chain, TableChain)
        chain.put(record(1, chain.begin(first)))
        _end_sessions(server)
        with pytest.raises(TransactionTimedOut):
            chain.commit()
        append(chain, first)

    @pytest.mark.parametrize("engine", ["MyISAM", "MEMORY"])
    def test_a_table_without_transactions_is_refused(
        self, ledger: ow.DatabaseLedger, server: LocalMySQL, engine: str
    ) -> None:
        chain = ledger.chain(P)
        append(chain, chain.take())
        chain.close()
        sql_at(server.url, f"ALTER TABLE {ledger.table} DROP COLUMN record, ENGINE = {engine}")
        with pytest.raises(ConfigurationError, match=rf"{ledger.table} of .* engine {engine}"):
            ledger.chain(P).peek()

    def test_settings_of_the_server_change_nothing(
        self, ledger: ow.DatabaseLedger, server: LocalMySQL
    ) -> None:
        """A COMMIT that opens another transaction would keep the row's lock."""
        sql_at(server.url, "SET GLOBAL completion_type = 1")
        sql_at(server.url, "SET GLOBAL sql_mode = ''")
        try:
            chain = ledger.chain(P)
            newest = append(chain, chain.take())
            heir = ledger.chain(P)
            append(heir, heir.take())
            assert heir.peek() != newest
            assert chain.session is not None
            with chain.session() as session:
                ((mode, chained),) = session.execute("SELECT @@sql_mode, @@completion_type")
        finally:
            sql_at(server.url, "SET GLOBAL completion_type = 0")
            sql_at(server.url, "SET GLOBAL sql_mode = DEFAULT")
        assert "STRICT_ALL_TABLES" in mode
        assert chained == "NO_CHAIN"
        chain.close()
        heir.close()

    def test_who_makes_staging_tables_is_waited_for(self, store: Store) -> None:
        """CREATE TABLE ends a transaction, and with it the row's lock."""
        old, heir = store.chain(), store.chain()
        old.take()
        assert isinstance(old, TableChain)
        assert isinstance(heir, TableChain)
        order: list[str] = []

        def next_owner() -> None:
            heir.take()
            with heir.owned():
                order.append("heir")

        with old.owned() as session:
            session.execute("CREATE TABLE IF NOT EXISTS made_meanwhile (x int)")
            other = threading.Thread(target=next_owner)
            other.start()
            time.sleep(1)
            order.append("old")
        other.join()
        assert order == ["old", "heir"]
        with pytest.raises(Fenced), old.owned():
            pass

    def test_a_database_that_is_away_is_named_without_the_password(self) -> None:
        ledger = ow.DatabaseLedger("mysql://me:a-secret@127.0.0.1:1/none?connect_timeout=2")
        with raises(LedgerUnreachable, "127.0.0.1") as refused:
            ledger.chain(P).take()
        assert "a-secret" not in f"{refused.value} {refused.value!r} {ledger!r}"


def _end_sessions(server: LocalMySQL) -> None:
    for (number,) in sql_at(
        server.url,
        "SELECT id FROM information_schema.processlist WHERE id <> connection_id() AND user = "
        "'onceward'",
    ):
        sql_at(server.url, f"KILL {number}")
    time.sleep(0.2)


class TestMySQL(MySQLContract):
    """MySQL 8.0."""

    @pytest.fixture
    def server(self, mysql: LocalMySQL) -> LocalMySQL:
        return mysql


@pytest.mark.once_more
class TestMariaDB(MySQLContract):
    @pytest.fixture
    def server(self, mariadb: LocalMySQL) -> LocalMySQL:
        return mariadb


@pytest.mark.parametrize(
    "url",
    [
        "mysql://u:a-secret@h:x/db",
        "mysql://u:a-secret@h",
        "mysql://u:a-secret@h/a/b",
        "mysql://u:a-secret@h/db?no_such=1",
        "mysql://u:a-secret@h/db?ssl_disabled=perhaps",
        "mysql://u:a-secret/@h/db",
        "mariadb://",
    ],
)
def test_what_is_no_address_of_mysql_is_refused_and_not_repeated(url: str) -> None:
    with raises(ConfigurationError) as refused:
        ow.DatabaseLedger(url)
    assert (
        "a-secret"
        not in f"{refused.value!r} {refused.value.__cause__!r} {refused.value.__context__!r}"
    )


class TestKafka(ChainContract):
    @pytest.fixture
    def store(self, kafka: LocalKafka, new_topic: Any) -> Iterator[Store]:
        topic = new_topic(kafka.bootstrap_servers, 1, prefix="ledger", cleanup_policy="compact")
        chains: list[Chain] = []

        def chain() -> Chain:
            chains.append(
                ow.KafkaLedger(kafka.bootstrap_servers, topic).chain(PipelineId(f"{P}-{topic}"))
            )
            return chains[-1]

        yield Store(chain, _no_answer)
        for each in chains:
            each.close()


def test_a_chain_in_kafka_is_known_by_its_topics_id(kafka: LocalKafka, new_topic: Any) -> None:
    """Which one that is created again by the same name has not."""
    found = set()
    for _ in range(2):
        topic = new_topic(kafka.bootstrap_servers, 1, prefix="ledger", cleanup_policy="compact")
        with closing(
            ow.KafkaLedger(kafka.bootstrap_servers, topic).chain(PipelineId(f"{P}-{topic}"))
        ) as chain:
            chain.take()
            found.add(chain.identity())
            assert topic not in chain.identity()
    assert len(found) == 2


def _no_answer(chain: Chain, carried_out: bool) -> AbstractContextManager[None]:
    assert isinstance(chain, KafkaChain)
    return lost_end_txn(chain, carried_out=carried_out)
