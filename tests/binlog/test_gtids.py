"""Sets of transactions, against sets of numbers, and what golden binlogs say of theirs."""

from __future__ import annotations

from copy import deepcopy

import pytest
from hypothesis import given
from hypothesis import strategies as st
from made_events import GOLDEN, GOLDEN_FILES, dialect_of, event_of

from onceward.errors import BinlogCorrupted, ChangeUnreadable, ConfigurationError
from onceward.mysql.binlog.event import (
    ANONYMOUS_GTID,
    GTID,
    GTID_LIST,
    GTID_TAGGED,
    MARIADB_GTID,
    PREVIOUS_GTIDS,
    XID,
)
from onceward.mysql.binlog.gtid_sets import GtidBinlogState, Gtids, GtidSet
from onceward.mysql.binlog.gtids import Gtid, parse_gtid, parse_previous_gtids
from support.binlog_files import events_of_file

ONE, OTHER = "08da8e05-e606-11f1-b06d-02fc00000001", "ffffffff-e606-11f1-b06d-02fc00000001"
NUMBERS = st.sets(
    st.tuples(st.sampled_from([ONE, OTHER]), st.sampled_from(["", "red"]), st.integers(1, 12))
)


def named(source, tag, number):
    return f"{source}:{tag}:{number}" if tag else f"{source}:{number}"


def set_of(numbers):
    found = GtidSet()
    for one in numbers:
        found.add(named(*one))
    return found


@given(NUMBERS, NUMBERS)
def test_sets_of_mysql_do_what_sets_do(some, others):
    one, two = set_of(some), set_of(others)
    assert one.covers(two) == (some >= others)
    assert (one == two) == (some == others)
    assert bool(one) == bool(some)
    assert Gtids.parse("mysql", str(one)) == one
    both = deepcopy(one)
    both.update(two)
    assert both == set_of(some | others)
    assert one == set_of(some)
    assert {named(*each) in one for each in some} <= {True}
    assert {named(*each) in one for each in others - some} <= {False}


@pytest.mark.parametrize(
    ("said", "written"),
    [
        ("", ""),
        (f"{ONE}:1-3:5", f"{ONE}:1-3:5"),
        (f" {ONE.upper()} : 1 - 3 : 4-9,\n{OTHER}:7 ", f"{ONE}:1-9,{OTHER}:7"),
        (f"{OTHER}:1,{ONE}:1:1-1:2,", f"{ONE}:1-2,{OTHER}:1"),
        (f"{ONE}:2:Red:1-3:7:blue:5", f"{ONE}:2:blue:5:red:1-3:7"),
        (f"{ONE}:red:1-3,{ONE}:4", f"{ONE}:4:red:1-3"),
        (ONE.replace("-", "") + ":1", f"{ONE}:1"),
    ],
)
def test_mysqls_text_is_read_as_the_server_reads_it(said, written):
    assert str(Gtids.parse("mysql", said)) == written


@pytest.mark.parametrize(
    "said",
    [
        "x", ONE, f"{ONE}:", f"{ONE}:0", f"{ONE}:3-2", f"{ONE}:-1", f"{ONE}:red", f"{ONE}:1:red",
        f"{ONE}:red:blue:1",
        f"{ONE}:1-", f"{ONE}:{(1 << 63) - 1}", f"{ONE}:²", "0-1-2", f"{ONE}:{'a' * 33}:1",
        f"{ONE}:1;{OTHER}:1",
    ],
)  # fmt: skip
def test_what_is_no_set_is_refused(said):
    with pytest.raises(ConfigurationError):
        Gtids.parse("mysql", said)


def test_a_state_of_mariadb_has_the_last_number_of_each_server_in_each_domain():
    found = Gtids.parse("mariadb", "1-7-20, 0-2-5,0-1-7")
    assert str(found) == "0-2-5,0-1-7,1-7-20"
    assert ["0-2-5" in found, "0-2-6" in found, "0-1-6" in found, "0-3-1" in found] == [
        True,
        False,
        True,
        False,
    ]
    found.add("0-2-6")
    found.add("2-1-1")
    assert str(found) == "0-1-7,0-2-6,1-7-20,2-1-1"
    assert found.covers(Gtids.parse("mariadb", "0-1-6,1-7-20"))
    assert not found.covers(Gtids.parse("mariadb", "0-3-1"))
    other = deepcopy(found)
    other.update(Gtids.parse("mariadb", "0-9-3,0-2-4"))
    assert (str(other), str(found)) == (
        "0-1-7,0-2-6,0-9-3,1-7-20,2-1-1",
        "0-1-7,0-2-6,1-7-20,2-1-1",
    )
    assert Gtids.parse("mariadb", str(other)) == other
    assert not found.is_unordered
    assert not GtidBinlogState()


def test_a_number_that_is_not_above_the_one_before_is_noticed():
    for numbers, unordered in (
        ("0-1-5 0-2-3 0-1-6", False),
        ("0-1-5 0-1-4", True),
        ("0-1-5 1-1-5", False),
    ):
        found = GtidBinlogState()
        for gtid in numbers.split():
            found.add(gtid)
        assert found.is_unordered is unordered


def test_what_a_person_names_is_the_last_of_a_domain():
    """As gtid_binlog_pos has it: whoever else wrote before is meant, and not named."""
    found = Gtids.parse("mariadb", "0-1-7,1-7-20,1-8-3").as_start()
    assert str(found) == "..0-1-7,1-7-20,1-8-3"
    assert Gtids.parse("mariadb", str(found)) == found
    for before, begins in (
        ("0-1-6,0-2-9", True),
        ("0-2-9,0-1-7", True),
        ("0-1-7,0-2-9", False),
        ("0-1-8", False),
    ):
        assert found.can_start_in(Gtids.parse("mariadb", before)) is begins, before


@pytest.mark.parametrize(
    ("skips", "order", "read"),
    [
        ("0-1-7", "0-1-6 0-2-7 0-1-7 0-1-8", ["0-2-7", "0-1-8"]),  # a write of the replica's own
        ("0-1-7", "0-1-7 0-1-6", ["0-1-6"]),  # the last one has come: whatever follows is new
        ("0-1-7,1-1-2", "1-1-2 0-1-6 1-1-1 0-1-7", ["1-1-1"]),
        ("..0-1-7", "0-2-6 0-1-7 0-2-7", ["0-2-7"]),
        ("0-1-7", "0-1-8 0-1-7", ["0-1-8", "0-1-7"]),
    ],
)
def test_what_was_read_elsewhere_is_passed_over_until_the_last_of_it_has_come(skips, order, read):
    left, found = GtidBinlogState.from_text(skips), []
    for gtid in order.split():
        if not left.must_skip(gtid):
            found.append(gtid)
        left.mark_reached(GtidBinlogState.from_text(gtid))
    assert found == read
    assert not left


@pytest.mark.parametrize(
    "said", ["0-1", "0-1-2-3", "a-b-c", f"{1 << 32}-1-1", "0-1-٣", f"{ONE}:1"]
)
def test_what_is_no_position_is_refused(said):
    with pytest.raises(ConfigurationError):
        Gtids.parse("mariadb", said)


def test_sets_of_two_kinds_of_servers_have_nothing_in_common():
    with pytest.raises(TypeError):
        Gtids.parse("mysql", "").covers(Gtids.parse("mariadb", ""))


@pytest.mark.parametrize("path", GOLDEN_FILES, ids=lambda path: path.stem)
def test_names_in_golden_binlogs(path):
    dialect = dialect_of(path)
    events = list(events_of_file(path.read_bytes(), dialect))
    starts = [(event, parse_gtid(event)) for event in events if parse_gtid(event)]
    before = next(found for event in events if (found := parse_previous_gtids(event)) is not None)
    assert starts
    for event, gtid in starts:
        assert gtid.text not in before
        before.add(gtid.text)
        assert dialect == "mariadb" or abs(gtid.committed_at_us / 1e6 - event.timestamp) < 3


def test_names_with_tags_are_as_mysql_9_wrote_them():
    tagged = [
        parse_gtid(event)
        for event in events_of_file((GOLDEN / "mysql-9.7.4-tagged.binlog").read_bytes(), "mysql")
    ]
    own = "baf58e0d-e75c-11f1-ad40-02fc00000001"
    assert [gtid.text for gtid in tagged if gtid] == [
        f"{own}:1",
        *(f"{own}:blue:{number}" for number in range(1, 6)),
        f"{own}:a_very_long_tag_of_32_characters:1",
        "5c4f3a10-0000-11f0-8000-ffeeddccbbaa:red:9223372036854775800",
        f"{own}:2",
        f"{own}:blue:6",
        f"{own}:blue:7",
    ]
    behind = events_of_file((GOLDEN / "mysql-9.7.4-behind-tagged.binlog").read_bytes(), "mysql")
    assert str(next(filter(None, map(parse_previous_gtids, behind)))) == (
        "5c4f3a10-0000-11f0-8000-ffeeddccbbaa:red:9223372036854775800,"
        f"{own}:1-2:a_very_long_tag_of_32_characters:1:blue:1-7"
    )


def test_old_servers_say_less():
    short = bytes(1) + bytes(16) + bytes(8)
    assert parse_gtid(event_of(ANONYMOUS_GTID, short)) == Gtid(None, None)
    assert (
        parse_gtid(
            event_of(MARIADB_GTID, (7).to_bytes(8, "little") + bytes(4) + b"\x29", server_id=3)
        ).text
        == "0-3-7"
    )
    assert parse_gtid(event_of(XID, bytes(8))) is None
    assert parse_previous_gtids(event_of(XID, bytes(8))) is None


def test_the_original_commit_counts():
    clock = b"\x02" + bytes(16)
    times = ((5 | 1 << 55).to_bytes(7, "little")) + (4).to_bytes(7, "little")
    assert parse_gtid(event_of(ANONYMOUS_GTID, bytes(25) + clock + times)).committed_at_us == 4
    assert (
        parse_gtid(
            event_of(ANONYMOUS_GTID, bytes(25) + clock + (5).to_bytes(7, "little"))
        ).committed_at_us
        == 5
    )


@pytest.mark.parametrize(
    ("kind", "body"),
    [
        (GTID, bytes(24)), (GTID, bytes(25)), (GTID, bytes(17) + b"\xff" * 8),
        (MARIADB_GTID, bytes(12)),
        (GTID_LIST, b"\xff\xff\xff\x0f"), (PREVIOUS_GTIDS, b"\xff" * 6 + b"\0\0"),
        (PREVIOUS_GTIDS, bytes(7)),
        (PREVIOUS_GTIDS, b"\1" + bytes(7) + bytes(16) + b"\1" + bytes(7) + bytes(16)),
        (GTID_TAGGED, b""),
        (GTID_TAGGED, b"\x02\xfe\x00"), (GTID_TAGGED, b"\x02\x08\x00\x00"),
    ],
)  # fmt: skip
def test_names_that_cannot_be_are_damage(kind, body):
    with pytest.raises(BinlogCorrupted):
        parse_gtid(event_of(kind, body)) or parse_previous_gtids(event_of(kind, body))


@pytest.mark.parametrize(
    ("kind", "body"),
    [
        (GTID_TAGGED, b"\x04\x10\x00"),
        (GTID_TAGGED, b"\x02\x10\x80"),
        (PREVIOUS_GTIDS, bytes(7) + b"\2"),
    ],
)
def test_names_of_a_newer_form_are_a_stop(kind, body):
    with pytest.raises(ChangeUnreadable) as found:
        parse_gtid(event_of(kind, body)) or parse_previous_gtids(event_of(kind, body))
    assert found.value.details == {"reason": "unknown_event", "at": "binlog.000007:4"}
