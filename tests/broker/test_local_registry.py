"""The registry for tests: it takes settings, and is gone with the block."""

from __future__ import annotations

import psutil
import urllib3

from onceward_testing import LocalRegistry


def test_it_takes_settings_and_is_gone_with_the_block():
    each_version_its_own = {"apicurio.ccompat.legacy-id-mode.enabled": "true"}
    with LocalRegistry(each_version_its_own) as server:
        ids = [
            urllib3.request(
                "POST",
                f"{server.url}/subjects/{subject}/versions",
                json={"schema": '"string"'},
                timeout=60,
            ).json()["id"]
            for subject in ("a", "b")
        ]
        assert len(set(ids)) == 2
        pid, folder = server.pid, server.folder
    assert pid is not None
    assert not psutil.pid_exists(pid)
    assert not folder.parent.exists()
