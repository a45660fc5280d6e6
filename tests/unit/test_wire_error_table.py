"""Every row of the error table: each code of Kafka gets a meaning for each request, and the grave
ones are right.
"""

from __future__ import annotations

import kafka.errors as kafka_errors
import pytest

from onceward.errors import (
    AccessDenied,
    BrokerUnreachable,
    ConfigurationError,
    Fenced,
    OncewardError,
    RecordTooLarge,
    Recovery,
    SendFailed,
    TopicMissing,
    TransactionTimeoutTooLarge,
)
from onceward.kafka.wire.conversation import Answered, Refused, asked
from onceward.kafka.wire.deadline import Deadline
from onceward.kafka.wire.error_table import Api, Meaning, code_name, find_rule
from support.errors import raises
from support.wire_fixtures import error_rules

KNOWN_CODES = sorted(
    error.errno
    for error in vars(kafka_errors).values()
    if isinstance(error, type) and getattr(error, "errno", None) is not None
)
TRANSACTIONAL = [
    Api.INIT_PRODUCER_ID,
    Api.ADD_PARTITIONS_TO_TXN,
    Api.ADD_OFFSETS_TO_TXN,
    Api.TXN_OFFSET_COMMIT,
    Api.END_TXN,
]


@pytest.mark.parametrize("api", Api)
def test_every_code_of_kafka_has_a_verdict_a_reason_and_an_error_of_ours(api: Api) -> None:
    for code in KNOWN_CODES:
        rule = find_rule(api, code)
        assert isinstance(rule.meaning, Meaning)
        assert rule.reason
        assert issubclass(rule.error, OncewardError)


@pytest.mark.parametrize("api", Api)
def test_a_code_that_nobody_foresaw_stops_and_names_itself(api: Api) -> None:
    rule = find_rule(api, 31_000)
    assert rule.meaning is Meaning.STOP
    assert "31000" in rule.reason


@pytest.mark.parametrize("api", Api)
def test_only_success_is_done(api: Api) -> None:
    done = {code for code in KNOWN_CODES if find_rule(api, code).meaning is Meaning.DONE}
    allowed = {Api.CREATE_TOPICS: {0, 36}, Api.OFFSET_FETCH: {0, 69}}.get(api, {0})
    assert done == allowed


@pytest.mark.parametrize("api", [*TRANSACTIONAL, Api.PRODUCE])
def test_an_epoch_that_is_not_current_is_never_repeated(api: Api) -> None:
    for code in (47, 90):
        assert find_rule(api, code).meaning is Meaning.FENCED
        assert find_rule(api, code).error is Fenced


@pytest.mark.parametrize("api", [*TRANSACTIONAL, Api.PRODUCE])
def test_concurrent_transactions_is_waited_out(api: Api) -> None:
    assert find_rule(api, 51).meaning is Meaning.RETRY


@pytest.mark.parametrize("api", TRANSACTIONAL)
def test_a_coordinator_that_moves_or_loads_is_patiently_found_again(api: Api) -> None:
    assert find_rule(api, 14).meaning is Meaning.RETRY
    assert find_rule(api, 15).meaning is Meaning.REFRESH
    assert find_rule(api, 16).meaning is Meaning.REFRESH


@pytest.mark.parametrize("code", [2, 5, 6, 7, 19, 20, 56, 74])
def test_a_produce_that_can_succeed_later_is_sent_again_with_its_sequence(code: int) -> None:
    assert find_rule(Api.PRODUCE, code).meaning in (Meaning.RETRY, Meaning.REFRESH)


@pytest.mark.parametrize("code", [19, 20])
def test_a_marker_waits_for_the_replicas_of_its_partition(code: int) -> None:
    rule = find_rule(Api.WRITE_TXN_MARKERS, code)
    assert (rule.meaning, rule.error) == (Meaning.RETRY, BrokerUnreachable)


def test_what_was_answered_at_last_names_its_topic() -> None:
    def answer(_: float) -> None:
        return None

    with pytest.raises(TopicMissing, match=r"UNKNOWN_TOPIC_OR_PARTITION .3. of topic orders"):
        asked(
            Api.TXN_OFFSET_COMMIT,
            "group etl",
            answer,
            lambda _: [Answered(0, "people"), Answered(3, "orders")],
            Deadline(10),
        )


@pytest.mark.parametrize("code", [32, 45, 46, 48, 59, 120])
def test_a_produce_that_only_another_batch_may_pass_gives_this_one_up(code: int) -> None:
    assert find_rule(Api.PRODUCE, code).meaning is Meaning.ABORT
    assert find_rule(Api.PRODUCE, code).error.recovery is Recovery.RUN_AGAIN


def test_what_the_user_must_change_has_an_error_of_its_own() -> None:
    assert find_rule(Api.PRODUCE, 10).error is RecordTooLarge
    assert find_rule(Api.PRODUCE, 29).error is AccessDenied
    assert find_rule(Api.INIT_PRODUCER_ID, 50).error is TransactionTimeoutTooLarge
    assert find_rule(Api.END_TXN, 53).error is AccessDenied
    assert find_rule(Api.PRODUCE, 19).error is SendFailed


def test_a_setting_that_is_wrong_is_named_with_what_to_do() -> None:
    """Brokers name a code, and hardly ever a setting."""
    wrong = [
        (api, code, rule) for api, code, rule in error_rules() if rule.error is ConfigurationError
    ]
    assert wrong
    for api, code, rule in wrong:
        assert rule.next_step, (api, code)
        assert Refused(api, code, rule, "it").as_error().next_step == rule.next_step


@pytest.mark.parametrize(
    ("api", "code", "setting"),
    [
        (Api.PRODUCE, 33, "sasl.mechanism"),
        (Api.PRODUCE, 76, "compression.type"),
        (Api.PRODUCE, 87, "cleanup.policy"),
        (Api.TXN_OFFSET_COMMIT, 12, "offset.metadata.max.bytes"),
        (Api.TXN_OFFSET_COMMIT, 28, "max.message.bytes of topic __consumer_offsets"),
    ],
)
def test_what_somebody_has_changed_in_the_cluster_may_be_changed_back(
    api: Api, code: int, setting: str
) -> None:
    error = Refused(api, code, find_rule(api, code), "it").as_error()
    assert error.recovery is Recovery.RESTART_IF_WORKED
    assert setting in error.next_step


def test_names_come_with_their_number() -> None:
    assert code_name(16) == "NOT_COORDINATOR (16)"
    assert "(31000)" in code_name(31_000)


def test_the_rows_cover_every_request() -> None:
    assert {api for api, _, _ in error_rules()} == set(Api)


def test_a_topic_that_is_created_while_a_broker_is_down_is_asked_for_again() -> None:
    """No setting is wrong then, and nobody has to decide anything."""
    rule = find_rule(Api.CREATE_TOPICS, 38)
    assert rule.meaning is Meaning.RETRY
    assert rule.error.recovery is not Recovery.STOP


@pytest.mark.parametrize("api", [Api.FIND_COORDINATOR, Api.INIT_PRODUCER_ID, Api.OFFSET_FETCH])
def test_a_single_broker_with_kafkas_own_defaults_is_told_what_to_set(api: Api) -> None:
    """It answers, and can never create the topic of the coordinators, with three replicas."""
    with raises(BrokerUnreachable, "COORDINATOR_NOT_AVAILABLE") as error:
        asked(api, "it", lambda _: 15, lambda code: [code], Deadline(1))
    assert "transaction.state.log.replication.factor" in error.value.next_step
    assert "offsets.topic.replication.factor" in error.value.next_step
