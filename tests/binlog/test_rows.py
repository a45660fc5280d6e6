"""Table maps and rows events to changes: made by hand, and as real servers wrote them."""

from __future__ import annotations

import collections
import json
import random
from decimal import Decimal

import pytest
from made_events import GOLDEN, GOLDEN_FILES, dialect_of, query
from made_tables import (
    DELETE,
    INT,
    NAME,
    NULL_INT,
    TABLE_MAP,
    UPDATE,
    WRITE,
    Made,
    event,
    number,
    row,
    rows,
    table_map,
    text,
)

from onceward.errors import BinlogCorrupted, ChangeUnreadable, OncewardError
from onceward.mysql.binlog import decoder as changes_module
from onceward.mysql.binlog import rows as rows_module
from onceward.mysql.binlog.blocks import CHANGES
from onceward.mysql.binlog.decoder import Decoder
from onceward.mysql.binlog.table_map import TableMap
from support.binlog_files import events_of_file
from support.errors import raises

MAP = table_map([INT, NAME, NULL_INT], key=[0])


def decoder(**settings):
    return Decoder("mysql", lambda *_: True, **settings)


def changes(*events, **settings):
    made = decoder(**settings)
    for each in events:
        made.feed(each)
    return made.flush().to_pylist()


def changes_of_file(file, **settings):
    made = Decoder(dialect_of(file), lambda *_: True, **settings)
    for each in events_of_file(file.read_bytes(), dialect_of(file)):
        made.feed(each)
    return made.flush()


@pytest.mark.parametrize(
    "file", sorted(GOLDEN.glob("*every-type.binlog")), ids=lambda file: file.name
)
def test_every_type_of_a_real_server(file):
    """What the servers' clients selected then: tests/database/test_binlog_values.py compares with
    a server again.
    """
    expected = json.loads((GOLDEN / f"{file.name}.rows.json").read_text())
    assert changes_of_file(file)["after"].to_pylist() == expected


def test_the_changes_of_a_golden_binlog_make_its_tables():
    file = GOLDEN / "mysql-8.0.33-compressed.binlog"
    tables = collections.defaultdict(dict)
    found = changes_of_file(file)
    assert found.schema == CHANGES
    for change in found.to_pylist():
        rows_there = tables[change["table"]]
        assert rows_there.get(change["key"]) == change["before"] or (
            change["op"] == "u" and "extra" in change["before"]
        )
        if change["op"] == "d":
            del rows_there[change["key"]]
        else:
            rows_there[change["key"]] = change["after"]
    for table, wanted in json.loads((GOLDEN / f"{file.name}.tables.json").read_text()).items():
        got = [json.loads(each, parse_float=Decimal) for each in tables[table].values()]
        assert sorted(map(plain, got)) == sorted(map(tuple, (cut(each) for each in wanted)))


def plain(values):
    """Number, name, amount, quantity, label and note, which a client shows as they are."""
    return tuple(str(values[name]) for name in ("id", "name", "amount", "qty", "status", "note"))


def cut(values):
    return (*values[:4], *values[5:7])


@pytest.mark.parametrize(
    ("name", "ops"),
    [
        ("mariadb-11.4.5-compressed", {"c": 202, "u": 100, "d": 40}),
        ("mariadb-11.4.5-truncate", {"c": 3, "t": 1}),
        ("mysql-8.0.33-truncate", {"c": 3, "t": 1}),
        ("mysql-8.0.33-compressed", {"c": 1224, "u": 185, "d": 4}),
    ],
)
def test_how_many_changes_golden_binlogs_have(name, ops):
    assert collections.Counter(changes_of_file(GOLDEN / f"{name}.binlog")["op"].to_pylist()) == ops


@pytest.mark.parametrize(
    ("name", "reason", "step"),
    [
        ("mysql-8.0.33-minimal-image", "row_image", "binlog_row_image = 'FULL'"),
        ("mysql-8.0.33-minimal-metadata", "row_metadata", "binlog_row_metadata = 'FULL'"),
    ],
)
def test_what_a_server_leaves_out_is_a_stop(name, reason, step):
    with pytest.raises(ChangeUnreadable) as stopped:
        changes_of_file(GOLDEN / f"{name}.binlog")
    assert stopped.value.details["reason"] == reason
    assert stopped.value.details["at"] in stopped.value.message
    assert step in stopped.value.next_step


def test_an_update_has_both_rows_and_the_even_and_the_odd_number():
    before, after = row(number(1), text(b"a"), None), row(number(1), text(b"b"), number(-5))
    found = changes(
        event(TABLE_MAP, MAP),
        event(UPDATE, rows(3, before, after, before, after, kind=UPDATE), 99),
    )
    assert [(c["op"], c["key"], c["before"], c["after"], c["row"], c["pos"]) for c in found] == [
        ("u", '{"id":1}', '{"id":1,"name":"a","v":null}', '{"id":1,"name":"b","v":-5}', place,
        99) for place in (1, 3)
    ]  # fmt: skip


def test_an_update_of_the_key_is_a_deletion_and_a_creation():
    images = [row(number(n), text(b"a"), None) for n in (1, 1, 2, 20, 3, 3)]
    found = changes(event(TABLE_MAP, MAP), event(UPDATE, rows(3, *images, kind=UPDATE)))
    assert [
        (c["op"], c["key"], c["before"] is None, c["after"] is None, c["row"]) for c in found
    ] == [
        ("u", '{"id":1}', False, False, 1),
        ("d", '{"id":2}', False, True, 2),
        ("c", '{"id":20}', True, False, 3),
        ("u", '{"id":3}', False, False, 5),
    ]


def test_a_table_without_a_key_has_none_and_its_updates_are_updates():
    images = [row(number(n), text(b"a"), None) for n in (1, 2)]
    found = changes(
        event(TABLE_MAP, table_map([INT, NAME, NULL_INT])),
        event(UPDATE, rows(3, *images, kind=UPDATE)),
    )
    assert [(c["op"], c["key"]) for c in found] == [("u", None)]


def test_changes_of_several_tables_are_in_the_binlogs_order():
    other = table_map([INT], number=78, table="u")
    fed = [event(TABLE_MAP, MAP), event(TABLE_MAP, other)]
    one = row(number(1), None, None)
    for place in range(40):
        kind, body = (
            (WRITE, rows(1, row(number(place)), number=78))
            if place % 3
            else (DELETE, rows(3, one, kind=DELETE))
        )
        fed.append(event(kind, body, 100 + place))
    assert [change["pos"] for change in changes(*fed)] == [100 + place for place in range(40)]


def random_rows(seed):
    shuffled = random.Random(seed)
    for _ in range(shuffled.choice((1, 2, 30))):
        name = shuffled.choice((None, b"", b"abc", b"x" * 40))
        value = shuffled.choice((None, number(shuffled.randrange(-(2**31), 2**31))))
        yield row(number(shuffled.randrange(2**31)), None if name is None else text(name), value)


@pytest.mark.parametrize("events", [1, 5, 40])
def test_rows_are_found_together_as_they_are_one_by_one(events, monkeypatch):
    fed = [
        event(TABLE_MAP, MAP),
        *(event(WRITE, rows(3, *random_rows(seed)), 100 + seed) for seed in range(events)),
    ]
    found = []
    for together in (1, 10**9, rows_module.TOGETHER):
        monkeypatch.setattr(rows_module, "TOGETHER", together)
        found.append(changes(*fed))
    assert found[0] == found[1] == found[2]
    assert len(found[0]) >= events


def test_a_row_that_runs_past_its_event_is_damage_whoever_walks_it(monkeypatch):
    bad = row(number(1), b"\x20abc", None)
    for many in (1, 20):
        fed = [event(WRITE, rows(3, row(number(1), text(b"a"), None)), 50) for _ in range(many)]
        with pytest.raises(
            BinlogCorrupted, match=r"at binlog\.000001:60 of the binlog: a row runs past"
        ):
            changes(event(TABLE_MAP, MAP), *fed, event(WRITE, rows(3, bad), 60))


def test_a_table_map_that_is_handed_over_is_in_force():
    inserted = event(WRITE, rows(3, row(number(1), None, None)))
    found = changes(inserted, maps=[MAP], gtid="0-1-7")
    assert [(change["key"], change["gtid"]) for change in found] == [('{"id":1}', "0-1-7")]
    with raises(ChangeUnreadable, reason="table_map"):
        changes(inserted)


def test_the_end_of_a_statement_without_rows_is_nothing():
    assert changes(event(WRITE, rows(1, number=0xFFFFFF))) == []


def test_extra_bytes_and_bits_behind_the_last_column_are_passed_over():
    data = row(number(1), None, None)
    body = rows(3, data, extra=b"\1\2\3")
    spread = body.replace(b"\3\7", b"\3\xff", 1)
    found = changes(
        event(TABLE_MAP, MAP),
        event(WRITE, body),
        event(WRITE, spread),
        event(WRITE, rows(3, data)),
    )
    assert [change["key"] for change in found] == ['{"id":1}'] * 3


def test_rows_of_a_table_that_is_not_wanted_are_not_looked_at():
    asked = []
    made = Decoder("mysql", lambda db, table: bool(asked.append((db, table))))
    made.feed(event(TABLE_MAP, table_map([Made("x", 99)], names=False)))
    made.feed(event(WRITE, rows(1, b"garbage")))
    assert made.flush().num_rows == 0
    assert asked == [("d", "t")]


@pytest.mark.parametrize("text", ["TRUNCATE xBEGIN", "TRUNCATE xBEGIN -- \0BEGIN"], ids=ascii)
def test_a_truncate_that_ends_like_a_begin_is_one(text):
    (found,) = changes(query("BEGIN"), query(text), query("BEGIN", ""))
    assert (found["op"], found["db"], found["table"]) == ("t", "shop", "xBEGIN")


def test_a_server_may_number_its_tables_anew_forever():
    made = decoder()
    for turn in range(6_000):
        made.feed(event(TABLE_MAP, table_map([INT], number=turn + 1)))
        made.feed(event(WRITE, rows(1, row(number(turn)), number=turn + 1)))
    assert made.flush().num_rows == 6_000
    assert len(made._numbers) < 5_000
    assert len(made._tables) == 1


def test_a_number_means_the_table_of_the_last_map_with_it():
    """After an ALTER TABLE, or another start of the server."""
    other = table_map([NULL_INT, INT], table="u")
    found = changes(
        event(TABLE_MAP, MAP), event(WRITE, rows(3, row(number(1), None, None)), 100),
        event(TABLE_MAP, other), event(WRITE, rows(2, row(number(2), number(3))), 200),
        event(TABLE_MAP, MAP), event(WRITE, rows(3, row(number(4), None, None)), 300),
    )  # fmt: skip
    assert [(change["table"], change["after"]) for change in found] == [
        ("t", '{"id":1,"name":null,"v":null}'),
        ("u", '{"v":2,"id":3}'),
        ("t", '{"id":4,"name":null,"v":null}'),
    ]


def test_a_table_of_many_columns():
    columns = [Made(f"c{place}", 3, nullable=True) for place in range(300)]
    cells = [None if place % 3 else number(place) for place in range(300)]
    (found,) = changes(
        event(TABLE_MAP, table_map(columns, key=[299, 251])), event(WRITE, rows(300, row(*cells)))
    )
    assert list(json.loads(found["after"]).values()) == [
        None if place % 3 else place for place in range(300)
    ]
    assert found["key"] == '{"c299":null,"c251":null}'


@pytest.mark.parametrize("type", [0, 6, 7, 11, 12, 20, 99])
def test_a_type_without_a_place_is_a_stop(type):
    with pytest.raises(
        ChangeUnreadable, match=rf"column 'x' of d\.t has the type {type} "
    ) as stopped:
        TableMap.parse(table_map([INT, Made("x", type)]), "mysql")
    assert stopped.value.details["reason"] == "column_type"


def every_cut(body):
    yield from (body[:end] for end in range(6, len(body)))


@pytest.mark.parametrize("file", GOLDEN_FILES, ids=lambda file: file.name)
def test_a_table_map_that_is_cut_off_is_refused_or_has_no_more(file):
    bodies = {
        bytes(each.body)
        for each in events_of_file(file.read_bytes(), dialect_of(file))
        if each.kind == TABLE_MAP
    }
    for body in sorted(bodies)[:2]:
        cuts = list(every_cut(body))[:: max(1, len(body) // 200)]
        assert all(is_refused_or_read(cut_off) for cut_off in cuts)
        assert is_refused_or_read(cuts[0]) == "refused"


def is_refused_or_read(body):
    try:
        TableMap.parse(body, "mysql")
    except OncewardError:
        return "refused"
    return "read"


def test_a_table_that_was_forgotten_loses_no_rows(monkeypatch):
    """Its number is known, and the bytes of its map are not any more."""
    monkeypatch.setattr(changes_module, "_MOST_TABLES", 2)
    made, found = decoder(), []
    for turn in range(3):
        for table in range(5):
            if turn == 0:
                made.feed(event(TABLE_MAP, table_map([INT], number=table, table=f"t{table}")))
            made.feed(event(WRITE, rows(1, row(number(turn)), number=table, flags=0)))
        found += made.flush().select(["table", "after"]).to_pylist()
    assert [(change["table"], change["after"]) for change in found] == [
        (f"t{table}", f'{{"id":{turn}}}') for turn in range(3) for table in range(5)
    ]


def test_many_rows_are_decoded_in_pieces(monkeypatch):
    fed = [
        event(TABLE_MAP, MAP),
        *(event(WRITE, rows(3, *random_rows(seed)), 100 + seed) for seed in range(60)),
    ]
    whole = changes(*fed)
    monkeypatch.setattr(changes_module, "PIECE_BYTES", 4000)
    made, pieces = decoder(), []
    for each in fed:
        made.feed(each)
    assert made.is_full
    while made.has_changes:
        pieces.append(made.flush().to_pylist())
    assert len(pieces) > 10
    assert [change for piece in pieces for change in piece] == whole
