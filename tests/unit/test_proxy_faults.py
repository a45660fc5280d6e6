"""Which request a fault of the proxy takes, and what is counted."""

from __future__ import annotations

import threading

import pytest

from onceward.errors import ConfigurationError, ResourceError
from onceward_testing.proxy import KafkaProxy
from onceward_testing.proxy.faults import Faults, On, ProxyFault, RequestPattern
from onceward_testing.proxy.frames import RequestCounter, RequestHead


def head(api: str = "Produce", client_id: str = "job-1") -> RequestHead:
    return RequestHead(api, 9, 1, client_id)


def taken(faults: Faults, fault: ProxyFault, requests: int, *, node: int = 1) -> list[int]:
    """Which of so many requests, from 1, the fault takes."""
    return [number for number in range(1, requests + 1) if faults.due(node, head()) is fault]


@pytest.mark.parametrize(
    ("nth", "times", "expected"), [(1, 1, [1]), (3, 1, [3]), (2, 2, [2, 3]), (4, None, [4, 5, 6])]
)
def test_the_nth_request_is_taken_and_those_after_it(
    nth: int, times: int | None, expected: list[int]
):
    faults = Faults()
    fault = On(faults, RequestPattern("Produce", nth, times)).drop_request()
    assert taken(faults, fault, 6) == expected


def test_only_matching_requests_are_counted():
    faults = Faults()
    fault = On(faults, RequestPattern("Produce", nth=2, client_id="job-*", node=3)).hold()
    others = [(3, head("Fetch")), (3, head(client_id="other")), (1, head())]
    assert [faults.due(node, request) for node, request in others] == [None] * 3
    assert taken(faults, fault, 3, node=3) == [2]


def test_of_two_that_are_due_the_first_acts_and_both_have_counted():
    faults = Faults()
    one = On(faults, RequestPattern("Produce")).reset()
    two = On(faults, RequestPattern("Produce", nth=1, times=2)).duplicate()
    assert [faults.due(1, head()) for _ in range(3)] == [one, two, None]


def test_a_cancelled_fault_takes_nothing():
    faults = Faults()
    fault = On(faults, RequestPattern("Produce")).drop_response()
    fault.cancel()
    assert taken(faults, fault, 3) == []
    kept = On(faults, RequestPattern("Produce")).drop_response()
    faults.disarm()
    assert taken(faults, kept, 3) == []


def test_waiting_ends_when_it_has_fired_so_often():
    fault = On(Faults(), RequestPattern("Produce", times=2)).delay(1)
    assert not fault.wait(0.01)
    threading.Timer(0.05, fault.has_fired).start()
    assert fault.wait(30)
    assert not fault.wait(0.01, times=2)
    fault.has_fired()
    assert fault.wait(0, times=2)
    assert fault.fired == 2


def test_a_misspelt_request_is_told_the_right_name():
    with pytest.raises(ConfigurationError) as refused:
        RequestPattern("EndTnx")
    assert "EndTxn" in refused.value.next_step
    with pytest.raises(ConfigurationError):
        RequestPattern("EndTxn", nth=0)


def test_counts_since_a_mark():
    counts = RequestCounter()
    counts.add(1, head())
    before = counts.mark()
    counts.add(1, head())
    counts.add(2, head(client_id="other"))
    counts.add(2, head("Fetch"))
    since = counts.since(before)
    assert (since.count("Produce"), since.count("Produce", client_id="job-?"),
        since.count("Produce", node=2)) == (
        2, 1, 1
    )  # fmt: skip
    assert counts.since(None).count("Produce") == 3
    assert since.client_ids("Produce") == {"job-1", "other"}
    assert since.count("EndTxn") == 0


def test_a_proxy_that_is_not_running_says_so():
    proxy = KafkaProxy({1: "127.0.0.1:9"})
    with pytest.raises(ResourceError):
        proxy.cut(1)


def test_a_port_that_is_taken_leaves_no_thread():
    before = threading.active_count()
    with KafkaProxy({1: "127.0.0.1:9"}) as first, pytest.raises(OSError, match="in use"):
        KafkaProxy({1: "127.0.0.1:9"}, ports=first.ports).start()
    assert threading.active_count() == before
