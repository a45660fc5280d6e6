"""The S3 store for tests: it starts, crashes and comes back."""

from __future__ import annotations

import psutil
import pytest
from pyarrow import fs

from onceward_testing import LocalS3


def client(server: LocalS3, secret: str) -> fs.S3FileSystem:
    return fs.S3FileSystem(
        access_key=server.user,
        secret_key=secret,
        endpoint_override=server.endpoint,
        region="us-east-1",
    )


@pytest.mark.slow  # its parts take half a minute to find each other again
def test_it_recovers_from_a_crash_and_is_gone_with_the_block():
    with LocalS3() as other, LocalS3() as server:
        bucket = server.url.removeprefix("s3a://")
        store = client(server, server.secret)
        with store.open_output_stream(f"{bucket}/a/b") as stream:
            stream.write(b"kept")
        with pytest.raises(OSError, match=r"ACCESS_DENIED|SIGNATURE|403"):
            client(server, "another").get_file_info(fs.FileSelector(bucket, recursive=True))
        assert not client(other, other.secret).get_file_info(
            fs.FileSelector(bucket, recursive=True)
        ), "another has a bucket of its own"
        first = server.pid
        server.kill()
        server.start()
        assert store.open_input_stream(f"{bucket}/a/b").read() == b"kept"
        second, folder = server.pid, server.folder
    assert first != second
    assert second is not None
    assert not psutil.pid_exists(second)
    assert not folder.parent.exists()
