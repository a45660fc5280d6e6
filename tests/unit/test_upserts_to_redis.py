"""What a Redis, or a service in its place, says to the writer: named errors, and what may pass."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from redis import exceptions as errors_of_redis

from onceward.delivery.redis_writer import RedisWriter
from onceward.errors import AccessDenied, AuthenticationFailed, ServerMisconfigured

CROSSED = "CROSSSLOT Keys in request don't hash to the same slot"
OF_A_ROW = "Command # 2 (EVALSHA 2 p:unknown command error: MOVED a) of pipeline caused error: "


@pytest.mark.parametrize(
    ("said", "error"),
    [
        # A cluster behind a proxy, or of a service, whose INFO does not tell
        (errors_of_redis.ResponseError(CROSSED), ServerMisconfigured),
        (errors_of_redis.ClusterCrossSlotError("Keys in request"), ServerMisconfigured),
        (errors_of_redis.ResponseError("MOVED 3999 127.0.0.1:6381"), ServerMisconfigured),
        (errors_of_redis.MovedError("3999 127.0.0.1:6381"), ServerMisconfigured),
        (
            errors_of_redis.ResponseError(
                f"Command # 2 (EVALSHA 2 p:MOVED a) of pipeline caused error: {CROSSED}"
            ),
            ServerMisconfigured,
        ),
        (errors_of_redis.ResponseError("unknown command 'SCRIPT', with args"), AccessDenied),
        (
            errors_of_redis.ResponseError(
                f"{OF_A_ROW}Error running script: Unknown Redis command called from Lua script"
            ),
            AccessDenied,
        ),
        (errors_of_redis.NoPermissionError("no permissions to run 'evalsha'"), AccessDenied),
        (errors_of_redis.AuthenticationError("WRONGPASS"), AuthenticationFailed),
        # At a failover, or for a time
        (errors_of_redis.ReadOnlyError("You can't write against a replica"), None),
        (errors_of_redis.NoScriptError("No matching script"), None),
        (errors_of_redis.BusyLoadingError("loading the dataset in memory"), None),
        (errors_of_redis.OutOfMemoryError("command not allowed: p:MOVED a"), None),
        # What a row has is nobody's word
        (errors_of_redis.OutOfMemoryError(f"{OF_A_ROW}command not allowed"), None),
        (errors_of_redis.ResponseError(f"{OF_A_ROW}MISCONF Redis is configured"), None),
        (errors_of_redis.ResponseError("MISCONF Redis is configured to save RDB"), None),
        (errors_of_redis.ConnectionError("Connection closed by server."), None),
    ],
    ids=repr,
)
def test_what_a_redis_says_is_named_or_tried_again_over_another_connection(
    said: Exception, error: type[Exception] | None
) -> None:
    closed: list[str] = []
    writer = RedisWriter("redis://host", "p:", 60)
    writer._client = SimpleNamespace(close=lambda: closed.append("closed"))  # type: ignore[assignment]  # a client
    with pytest.raises(error or type(said)) as raised, writer._naming_refusals():
        raise said
    assert closed
    assert writer._client is None
    if error is not None:
        assert str(said) in str(raised.value)
