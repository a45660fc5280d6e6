"""The Redis for tests: it starts, crashes and comes back."""

from __future__ import annotations

from contextlib import closing

import psutil
import pytest
from redis import AuthenticationError, Redis

from onceward_testing import LocalRedis


@pytest.mark.lengthy("chaos")
def test_it_recovers_from_a_crash_and_is_gone_with_the_block():
    with LocalRedis({"maxclients": "77"}) as server:
        with closing(Redis.from_url(server.url)) as client:
            assert client.config_get("maxclients") == {"maxclients": "77"}
            client.set("kept", 1)
        first = server.pid
        server.kill()
        server.start()
        with closing(Redis.from_url(server.url)) as client:
            assert client.get("kept") == b"1"
        with closing(Redis(port=server.port)) as stranger, pytest.raises(AuthenticationError):
            stranger.ping()
        second, folder = server.pid, server.folder
    assert first != second
    assert second is not None
    assert not psutil.pid_exists(second)
    assert not folder.parent.exists()
