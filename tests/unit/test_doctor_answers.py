"""``onceward doctor`` without brokers: the ACLs in their three forms, and what a refusal is said
to lack.
"""

from __future__ import annotations

import json
import re
import shlex
import ssl
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NoReturn

import pytest
import redis
import typer
from typer.testing import CliRunner

from onceward import errors
from onceward.cli import app
from onceward.cli.doctor import checks, consumers, mysql_changes, targets
from onceward.cli.doctor.checks import compare_with_timeout, run_check, run_checks
from onceward.cli.doctor.command import _end, _print
from onceward.cli.doctor.kinds import CheckResult, diagnose
from onceward.cli.doctor.mysql_changes import Missing, lines
from onceward.cli.doctor.targets import check_registry, check_target, in_options
from onceward.engine.ledger.record import LedgerRecord
from onceward.errors import AccessDenied
from onceward.ids import AttemptId, BatchId, PipelineId
from onceward.kafka.wire.acls import Acl, Kind, Need, denied, minimal_acls
from onceward.kafka.wire.conversation import Refused
from onceward.kafka.wire.error_table import Api, find_rule
from onceward.sql.postgresql.catalogue import table_named
from support.certificates import make_certificates
from support.hostile_http import Behaviour, HostileServer, answer

Look = Callable[[], list[CheckResult]]
LOOKS = (
    (checks, "machine"), (checks, "brokers"), (consumers, "consumers"), (targets, "target"),
    (targets, "registry"), (mysql_changes, "mysql"),
)  # fmt: skip

NAMES = [
    "--pipeline-id",
    "p",
    "--topic",
    "out",
    "--topic",
    "more",
    "--source-topic",
    "in",
    "--principal",
    "User:a b",
]


def said(*arguments: str) -> str:
    result = CliRunner().invoke(app, ["doctor", "--acls", *arguments])
    assert result.exit_code == 0, result.output
    return result.output


@pytest.mark.parametrize("form", ["kafka-acls", "table", "json"])
def test_a_principal_without_a_type_is_refused_as_kafka_acls_does(form: str) -> None:
    wrong = ["etl" if name == "User:a b" else name for name in NAMES]
    refused = CliRunner().invoke(app, ["doctor", "--acls", *wrong, "--format", form])
    assert refused.exit_code == 64
    assert "--principal User:etl" in refused.output
    assert not refused.stdout


def test_commands_of_kafkas_log_in_by_the_file_that_doctor_was_given(
    capsys: pytest.CaptureFixture[str],
) -> None:
    facts = {"cleanup.policy": "delete"}
    found = diagnose("ledger topic", "ledger", facts, name="ledger", servers="b:9092")
    _print(found, Path("/etc/kafka/my admin.properties"))
    line = capsys.readouterr().out.partition("Next: ")[2]
    assert shlex.split(line)[:5] == [
        "kafka-configs", "--command-config", "/etc/kafka/my admin.properties",
        "--bootstrap-server", "b:9092",
    ]  # fmt: skip


def test_lines_for_a_shell_are_quoted_and_what_is_optional_is_commented_out() -> None:
    commands = [shlex.split(line, comments=True) for line in said(*NAMES).splitlines()]
    needed = {(c[c.index("--operation") + 1], c[-4], c[-3]) for c in commands if c}
    assert needed == {
        ("Read", "--topic", "in"),
        ("Write", "--topic", "out"),
        ("Write", "--topic", "more"),
        ("Read", "--topic", "onceward-ledger"),
        ("Write", "--topic", "onceward-ledger"),
        ("Create", "--topic", "onceward-ledger"),
        ("Write", "--transactional-id", "p"),
        ("Read", "--group", "p"),
    }
    assert all("User:a b" in command for command in commands if command)


def test_it_is_said_for_which_sink_an_optional_right_is_needed() -> None:
    (line,) = [
        line for line in said(*NAMES).splitlines() if "DescribeConfigs --topic out " in line
    ]
    assert line.startswith("# ")
    assert "on_error='dead_letter' needs it" in line


def test_every_form_has_the_same_lines() -> None:
    lines = json.loads(said(*NAMES, "--format", "json"))
    table = said(*NAMES, "--format", "table").splitlines()[2:]
    assert len(lines) == len(table) == 13
    assert [row.split()[0] for row in table] == [line["operation"] for line in lines]
    assert {line["needed"] for line in lines} == {"always", "first start", "optional"}


def test_topics_of_a_pattern_are_granted_by_how_they_begin() -> None:
    names = ["--pipeline-id", "p", "--topic", "out", "--source-prefix", "orders-"]
    lines = json.loads(said(*names, "--format", "json"))
    (prefixed,) = [line for line in lines if line["pattern_type"] == "prefixed"]
    assert (prefixed["operation"], prefixed["resource"]) == ("Read", "orders-")
    assert "--topic orders- --resource-pattern-type prefixed" in said(*names)
    assert [line["resource"] for line in lines if line["resource_type"] == "group"] == ["p"]


def test_a_pipeline_without_kafka_sources_has_no_group_and_one_with_a_ledger_need_not_create_it() -> (
    None
):
    lines = minimal_acls(
        pipeline_id="p", topics=["out"], source_topics=[], ledger_topic="l", ledger_exists=True
    )
    assert not [line for line in lines if line.kind is Kind.GROUP or line.need is Need.FIRST_START]


def test_acls_without_names_are_refused_with_what_to_add() -> None:
    result = CliRunner().invoke(app, ["doctor", "--acls", "--topic", "out"])
    assert result.exit_code == 64
    assert "--pipeline-id" in result.output


def batch(number: int, open_ms: int | None) -> LedgerRecord:
    done = BatchId("q", number)
    return LedgerRecord(
        PipelineId("p"), number, done, (), AttemptId(1, number), {}, 0, open_ms=open_ms
    )


@pytest.mark.parametrize(
    ("recent", "timeout_ms", "status", "says"),
    [
        (
            [batch(0, None), batch(1, 400), batch(2, 29_000)],
            60_000,
            "ok",
            "batch 2, .* 29000 ms, 48% .* 31000 ms; .* 900000",
        ),
        (
            [batch(1, 30_000), batch(2, 10)],
            60_000,
            "warn",
            "of its last 2 batches the slowest, batch 1,",
        ),
        ([batch(1, 30_000)], None, "ok", "30000 ms; the coordinator does not say"),
        ([batch(1, None)], 60_000, "ok", "do not say how long"),
        ([], 60_000, "ok", "no batch in ledger topic l yet"),
    ],
)
def test_the_slowest_batch_is_compared_with_the_timeout(
    recent: list[LedgerRecord], timeout_ms: int | None, status: str, says: str
) -> None:
    found = compare_with_timeout("p", recent, timeout_ms, 900_000, "l")
    assert found.status == status
    assert re.search(says, found.what), found.what
    assert ("max_offsets_per_trigger" in found.next_step) == (status == "warn")


def test_arguments_name_pattern_and_resource() -> None:
    line = Acl("IdempotentWrite", Kind.CLUSTER, "", Need.ALWAYS, "")
    assert line.arguments("User:x")[2:] == [
        "--operation",
        "IdempotentWrite",
        "--cluster",
        "--resource-pattern-type",
        "literal",
    ]


@pytest.mark.parametrize(
    ("api", "code", "lacks"),
    [
        (Api.PRODUCE, 29, "Write on topic t"),
        (Api.PRODUCE, 53, "Write on transactional id p"),
        (Api.ADD_PARTITIONS_TO_TXN, 29, "Write on topic t"),
        (Api.FETCH, 29, "Read on topic t"),
        (Api.TXN_OFFSET_COMMIT, 29, "Read on topic t"),
        (Api.TXN_OFFSET_COMMIT, 30, "Read on group g"),
        (Api.CREATE_TOPICS, 29, "Create on topic t"),
        (Api.DESCRIBE_CONFIGS, 31, "DescribeConfigs on cluster"),
        (Api.METADATA, 29, "Describe (Read and Write include it) on topic t"),
        (Api.FIND_COORDINATOR, 53, "Write on transactional id p"),
    ],
)
def test_a_refusal_says_which_right_is_lacking(api: Api, code: int, lacks: str) -> None:
    assert denied(api, code) is not None
    names = {Kind.TOPIC: "t", Kind.TRANSACTIONAL_ID: "p", Kind.GROUP: "g"}
    error = Refused(api, code, find_rule(api, code), "it", resources=names).as_error()
    assert isinstance(error, AccessDenied)
    assert f"the principal lacks {lacks}" in error.message
    assert "onceward doctor --acls" in error.next_step


@pytest.mark.parametrize("prefix", ["", "schema.registry."])
def test_a_registry_is_asked_with_the_login_of_confluents_file(
    tmp_path: Path, prefix: str
) -> None:
    config = tmp_path / "client.properties"
    config.write_text(
        f"bootstrap.servers=b:9092\nssl.endpoint.identification.algorithm=https\n"
        f"{prefix}basic.auth.user.info=key:secret\nschema.registry.url=http://elsewhere\n"
        f"{prefix}basic.auth.credentials.source=USER_INFO\n"
    )
    with HostileServer([answer(200, [])]) as server:
        found = CliRunner().invoke(
            app, ["doctor", "--registry", server.url, "--command-config", str(config)]
        )
        assert found.exit_code == 0, found.output
        assert b"Basic a2V5OnNlY3JldA==" in server.requests[0]


@pytest.mark.parametrize(("refusal", "status"), [(403, 0), (401, 77)])
def test_a_level_of_a_registry_that_may_not_be_read_is_not_checked(
    refusal: int, status: int
) -> None:
    """Rights by subject, without one that no pipeline needs."""
    levels = [answer(200, ["a-value", "b-value"]), answer(refusal, {"message": "denied"})]
    levels += [answer(200, {"compatibilityLevel": "NONE"})]
    with HostileServer(levels) as server:
        subjects = ("--subject", "a-value", "--subject", "b-value")
        found = CliRunner().invoke(app, ["doctor", "--registry", server.url, *subjects])
    assert found.exit_code == status, found.output
    said = " ".join(found.output.split())
    assert ("not checked: the schema registry at" in said) == (refusal == 403), said
    assert ("subject b-value: compatibility=NONE" in said) == (refusal == 403), "the next one"


@pytest.mark.parametrize(
    ("raised", "status"),
    [
        ([errors.BrokerUnreachable], 69),
        ([errors.ServerUnreachable, errors.RegistryUnreachable, errors.TargetUnreachable], 69),
        ([errors.RegistryUnreachable, errors.AuthenticationFailed], 77),
        ([errors.RegistryRefused], 77),
        ([errors.BrokerUnreachable, errors.TopicMissing, errors.AuthenticationFailed], 1),
        ([errors.ConnectorMissing], 1),
        ([errors.ServerMisconfigured], 1),
        ([errors.AccessDenied, errors.UnsupportedBroker], None),
    ],
    ids=str,
)
def test_who_is_away_is_no_misconfiguration(
    raised: list[type[errors.OncewardError]], status: int | None
) -> None:
    def look(kind: type[errors.OncewardError]) -> NoReturn:
        raise kind("no", next_step="see")

    found = [run_check(partial(look, kind)) for kind in raised]
    with nullcontext() if status is None else pytest.raises(typer.Exit) as ended:
        _end(found)
    assert status is None or ended.value.exit_code == status


@pytest.mark.parametrize(
    "look",
    [
        ("--bootstrap-servers", "127.0.0.1:1", "--consumers", "--topic", "t"),
        ("--mysql", "mysql://a:b@127.0.0.1:1", "--tables", "a.b"),
        ("--target", "postgresql://a:b@127.0.0.1:1/d"),
    ],
    ids=lambda look: look[-4] if len(look) > 3 else look[0],
)
def test_a_server_that_is_away_is_no_verdict(look: tuple[str, ...]) -> None:
    found = CliRunner().invoke(app, ["doctor", *look])
    assert found.exit_code == 69, found.output


A, B = ("--bootstrap-servers", "b:9092"), ("--target", "redis://h")
C, R = ("--consumers", "--topic", "t"), ("--registry", "http://h")


@pytest.mark.parametrize(
    ("arguments", "made"),
    [
        ((), "machine"),
        (A, "machine brokers"),
        (B, "target"),
        (R, "registry"),
        ((*A, *B), "machine brokers target"),
        ((*A, *B, *R), "machine brokers target registry"),
        ((*A, *C), "consumers"),
        ((*A, *C, *B), "consumers target"),
        ((*A, *C, "--pipeline-id", "p"), "machine brokers consumers"),
        ((*B, "--source-topic", "t"), "machine target"),
        ((*B, "--mysql", "mysql://h"), "target mysql"),
        ((*A, "--mysql", "mysql://h", "--tables", "a.b"), "machine brokers mysql"),
    ],
    ids=lambda part: part if isinstance(part, str) else "",
)
def test_each_look_that_is_asked_for_is_made(
    arguments: tuple[str, ...], made: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks: list[str] = []

    def look(name: str, failed: bool) -> Callable[..., Any]:
        def call(*_: object) -> Any:
            looks.append(name)
            found = [CheckResult("fail" if failed else "ok", name, exit_status=69)]
            return (found, []) if name == "mysql" else found

        return call

    def run(failing: str) -> int:
        looks.clear()
        for module, name in LOOKS:
            monkeypatch.setattr(module, f"check_{name}", look(name, name == failing))
        return CliRunner().invoke(app, ["doctor", *arguments]).exit_code

    monkeypatch.delenv("ONCEWARD_BOOTSTRAP_SERVERS", raising=False)
    assert (run(""), looks) == (0, made.split())
    assert [run(each) for each in made.split()] == [69] * len(made.split()), "of each"


def test_the_shells_brokers_ask_for_no_look_beside_another(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("ONCEWARD_BOOTSTRAP_SERVERS", "127.0.0.1:1")
    monkeypatch.setattr(targets, "check_target", lambda *_: [CheckResult("ok", "fine")])
    found = CliRunner().invoke(app, ["doctor", *B])
    assert (found.exit_code, found.output.split()) == (0, ["ok", "fine"])


def test_tables_of_a_target_that_has_no_look_at_one_are_named() -> None:
    *_, last = check_target("redis://127.0.0.1:1", ["orders", "lines"])
    assert (last.status, last.what.partition(";")[0]) == ("warn", "not checked: orders, lines")


def registry_look(url: str, *more: str) -> Any:
    return CliRunner().invoke(app, ["doctor", "--registry", url, *more])


def test_who_does_what_is_said_of_a_registrys_certificate_is_shown_it(tmp_path: Path) -> None:
    """In one file with Kafka's own authority, which is another."""
    make_certificates(tmp_path)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tmp_path / "here.pem")
    config = tmp_path / "client.properties"
    with HostileServer([answer(200, [])], context) as server:
        untrusted = registry_look(server.url)
        step = re.search(r"Next: set (\S+) in the file of (\S+) to ", untrusted.output)
        assert step is not None, untrusted.output
        config.write_text(
            f"ssl.ca.location=/of/kafka.crt\n{step[1]}={tmp_path / 'authority.crt'}\n"
        )
        trusted = registry_look(server.url, step[2], str(config))
    assert (untrusted.exit_code, trusted.exit_code) == (77, 0), trusted.output


def missing_table() -> list[CheckResult]:
    nothing: Any = SimpleNamespace(execute=lambda *_: SimpleNamespace(fetchone=lambda: None))
    return run_checks(lambda: targets._table(table_named, nothing, "orders", "etl"))


def of_a_server(behaviour: Behaviour, look: Callable[[str], list[CheckResult]]) -> Look:
    def call() -> list[CheckResult]:
        with HostileServer([behaviour]) as server:
            return look(server.url)

    return call


@pytest.mark.parametrize(
    ("look", "option", "says"),
    [
        (lambda: check_registry("http://u:p@h", []), "--registry", "=user:password in the file"),
        (lambda: check_registry("ftp://h", []), "--registry", r"Next: pass one http://"),
        (of_a_server(answer(401), lambda url: check_registry(url, [])), "--registry", "the file"),
        (of_a_server(answer(302), lambda url: check_registry(url, [])), "--registry", "address"),
        (of_a_server(answer(401), lambda url: check_target(url, ["i"])), "--target", "--target "),
        (lambda: check_target("postgresql://@@/", []), "--target", "--target=… is no address"),
        (lambda: check_target("mysql://", []), "--target", "--target=… is no address"),
        (missing_table, "--target", "correct --tables, which"),
    ],
)
def test_what_to_do_is_said_in_options_of_the_command(
    look: Look, option: str, says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    _print(in_options(look(), option))
    said = capsys.readouterr().out
    assert re.search(says, said), said
    assert not re.search(r"(?<![\w.])(url|options|table)=", said), said


def test_a_host_or_a_subject_that_begins_as_a_setting_keeps_its_name() -> None:
    what = "subject ssl.events.v1-value, table ssl.ca of ssl.example.org"
    (found,) = in_options([CheckResult("fail", what, "set ssl.ca.location")], "--registry")
    assert (found.what, found.next_step) == (what, "set schema.registry.ssl.ca.location")


def test_an_address_of_a_redis_that_cannot_be_read_is_no_server_that_is_away() -> None:
    """And what stands where its port is looked for may be half of a password."""
    found = CliRunner().invoke(app, ["doctor", "--target", "redis://:sec/ret@cache:6379"])
    assert found.exit_code == 1
    assert "write special characters as %25" in found.output
    assert "sec" not in found.output


def test_a_redis_at_a_socket_of_this_machine_is_asked_as_the_sink_does(tmp_path: Path) -> None:
    socket = tmp_path / "redis.sock"
    found = CliRunner().invoke(app, ["doctor", "--target", f"unix://{socket}"])
    assert found.exit_code == 69
    assert f"Redis at {socket} does not say its settings" in " ".join(found.output.split())


@pytest.mark.parametrize(
    "refused",
    [
        redis.exceptions.ResponseError(
            "unknown command 'CONFIG', with args beginning with: 'GET'"
        ),
        redis.exceptions.NoPermissionError("this user has no permissions to run 'config|get'"),
        "nothing is answered",
    ],
    ids=["managed", "without the right", "not told"],
)
def test_of_a_redis_without_config_what_the_sink_may_read_is_looked_at(
    refused: Exception | str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def client(info: dict[str, object]) -> SimpleNamespace:
        def config_get(name: str) -> dict[str, str]:
            if isinstance(refused, str):
                return {}
            raise refused

        pool = SimpleNamespace(make_connection=lambda: None)
        return SimpleNamespace(
            config_get=config_get, info=lambda: info, close=lambda: None, connection_pool=pool
        )

    def results(**info: object) -> dict[str, str]:
        monkeypatch.setattr(redis.Redis, "from_url", lambda *_, **__: client(info))
        return {each.kind: each.what for each in check_target("redis://host", [])}

    found = results(aof_enabled=0, maxmemory_policy="allkeys-lru")
    assert found.keys() == {"", "redis-append-only", "redis-evictions"}
    assert "not checked: appendfsync of Redis at host" in found[""]
    assert str(refused) in found[""]
    assert results(aof_enabled=1, maxmemory_policy="noeviction") == {"": found[""]}
    assert "not checked: appendonly, appendfsync, maxmemory-policy" in results()[""]
    assert results(cluster_enabled=1, role="slave").keys() == {
        "", "redis-cluster", "redis-replica",
    }  # fmt: skip


def test_no_line_for_a_client_turns_gtids_on() -> None:
    """Each step is for all servers that replicate: a replica that is a step behind stops."""
    said = lines(Missing(settings=("binlog_format", "gtid_mode")), "mysql", "cdc@%")
    run = [line for line in said if not line.startswith("--")]
    assert run == ["SET PERSIST binlog_format = 'ROW';"]
    assert [line.split()[-1] for line in said if "SET PERSIST enforce" in line] == ["WARN;", "ON;"]
