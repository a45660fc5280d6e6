"""Every store of the ledger keeps the contract of chains, and each what it says besides."""

from __future__ import annotations

import multiprocessing
import os
import shutil
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from chain_contract import ChainContract, P, Store, append, record

import onceward as ow
from onceward.errors import (
    CommitInDoubt,
    ConfigurationError,
    Fenced,
    LedgerBehind,
    LedgerUnreachable,
    LedgerUnreadable,
)
from onceward.ledger import folder
from onceward.ledger.chain import Chain
from onceward.ledger.folder import FolderChain
from onceward.ledger.kafka_chain import KafkaChain
from onceward.testing import LocalKafka
from onceward.wire.connections import ConnectionLost


class TestFolder(ChainContract):
    @pytest.fixture
    def store(self, tmp_path: Path) -> Store:
        return Store(lambda: ow.FolderLedger(tmp_path).chain(P), _unsynced)

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
        """Each takes the chain and appends as long as it may; what they all wrote is one chain without a gap."""
        context = multiprocessing.get_context("spawn")
        workers = [context.Process(target=_take_and_append, args=(str(tmp_path), 40)) for _ in range(4)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join(120)
        assert [worker.exitcode for worker in workers] == [0] * 4
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

    def test_a_folder_that_is_gone_or_restored_is_noticed_by_who_works_with_it(
        self, store: Store, tmp_path: Path
    ) -> None:
        chain = store.chain()
        first = append(chain, chain.take())
        (tmp_path / P / f"{1:020}.json").unlink()
        with pytest.raises(LedgerBehind):
            chain.begin(first)

    def test_a_folder_that_cannot_be_written_is_named(self, tmp_path: Path) -> None:
        (tmp_path / "file").write_text("no folder")
        with pytest.raises(LedgerUnreachable, match="file"):
            ow.FolderLedger(tmp_path / "file").chain(P).take()

    def test_an_entry_that_cannot_be_read_is_named(self, store: Store, tmp_path: Path) -> None:
        chain = store.chain()
        append(chain, chain.take())
        (tmp_path / P / f"{1:020}.json").write_text("{")
        with pytest.raises(LedgerUnreadable, match=f"{1:020}.json"):
            store.chain().take()

    @pytest.mark.parametrize("path", ["", "s3://bucket/ledger", "hdfs://name/ledger"])
    def test_what_is_no_local_folder_is_refused(self, path: str) -> None:
        with pytest.raises(ConfigurationError, match="local disk"):
            ow.FolderLedger(path)

    def test_another_file_system_is_refused_by_name(
        self, store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        assert folder.file_system_of(tmp_path) in (None, *folder._LOCAL)
        monkeypatch.setattr(folder, "file_system_of", lambda _: "nfs4")
        with pytest.raises(ConfigurationError, match="nfs4"):
            store.chain().take()


@contextmanager
def _unsynced(chain: Chain, carried_out: bool) -> Iterator[None]:
    """The disk fails: before the entry has its name, or when the folder is to be synced."""
    with pytest.MonkeyPatch.context() as patch:

        def failing(*_: Any) -> None:
            raise OSError("lost on purpose")

        if carried_out:
            patch.setattr(folder, "_sync", failing)
        else:
            patch.setattr(os, "link", failing)
        yield


def _take_and_append(path: str, count: int) -> None:
    appended = 0
    while appended < count:
        chain = FolderChain(Path(path), P)
        try:
            newest = chain.take()
            for _ in range(min(5, count - appended)):
                newest = append(chain, newest)
                appended += 1
        except Fenced:
            continue


class TestKafka(ChainContract):
    @pytest.fixture
    def store(self, kafka: LocalKafka, new_topic: Any) -> Iterator[Store]:
        topic = new_topic(kafka.bootstrap_servers, 1, prefix="ledger", cleanup_policy="compact")
        chains: list[Chain] = []

        def chain() -> Chain:
            chains.append(ow.KafkaLedger(kafka.bootstrap_servers, topic).chain(ow_pipeline(topic)))
            return chains[-1]

        yield Store(chain, _lost_end_txn)
        for each in chains:
            each.close()


def ow_pipeline(topic: str) -> Any:
    return f"{P}-{topic}"


@contextmanager
def _lost_end_txn(chain: Chain, carried_out: bool) -> Iterator[None]:
    assert isinstance(chain, KafkaChain)
    client, transaction = chain._client, chain.transaction
    send, patience_ms = client.send, transaction.patience_ms

    def losing(request: Any, node_id: int | str, timeout_ms: float | None = None) -> Future[Any]:
        if not type(request).__name__.startswith("EndTxn"):
            return send(request, node_id, timeout_ms)
        outcome: Future[Any] = Future()
        lost = ConnectionLost("lost on purpose")
        if carried_out:
            send(request, node_id, timeout_ms).add_done_callback(lambda _: outcome.set_exception(lost))
        else:
            outcome.set_exception(lost)
        return outcome

    client.send = losing  # type: ignore[method-assign]
    transaction.patience_ms = 2_000
    try:
        yield
    finally:
        client.send = send  # type: ignore[method-assign]
        transaction.patience_ms = patience_ms
