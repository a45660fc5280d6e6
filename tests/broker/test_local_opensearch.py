"""The OpenSearch for tests: it starts, crashes and comes back."""

from __future__ import annotations

from typing import Any

import psutil
import urllib3

from onceward_testing import LocalOpenSearch


def asked(url: str, method: str = "GET", body: Any = None) -> Any:
    return urllib3.request(method, url, json=body, timeout=60).json()


def test_it_recovers_from_a_crash_and_is_gone_with_the_block():
    with LocalOpenSearch({"node.attr.room": "77"}) as server:
        [node] = asked(f"{server.url}/_nodes/_local")["nodes"].values()
        assert node["attributes"]["room"] == "77"
        asked(f"{server.url}/things/_doc/1", "PUT", {"kept": 1})
        first = server.pid
        server.kill()
        server.start()
        assert asked(f"{server.url}/things/_doc/1")["_source"] == {"kept": 1}
        second, folder = server.pid, server.folder
    assert first != second
    assert second is not None
    assert not psutil.pid_exists(second)
    assert not folder.parent.exists()
