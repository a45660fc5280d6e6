"""A broker that trusts nobody: TLS with certificates of its own, passwords, tokens, and no right
without an ACL.

Used by the tests of rights, logins and secrets. The plaintext listener belongs to the cluster's
keeper (a super user): tests feed, read back and grant through it. Pipelines come through the other
listeners, as ``User:etl``.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from confluent_kafka.admin import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
)
from streaming_pipeline import Pipeline

import onceward
from onceward.kafka.wire.acls import Acl, Need, minimal_acls
from onceward_testing import LocalKafka
from support.certificates import KEY_PASSWORD, make_certificates

PRINCIPAL = "User:etl"
PASSWORD = "the-canary-sings-Pw7"
ACL_SECONDS = 30

_LOGIN = "org.apache.kafka.common.security"
_BEARER = "oauthbearer.OAuthBearerLoginModule"
_RESOURCES = {
    "topic": ResourceType.TOPIC,
    "group": ResourceType.GROUP,
    "transactional-id": ResourceType.TRANSACTIONAL_ID,
}
_OPERATIONS = {
    "Read": AclOperation.READ,
    "Write": AclOperation.WRITE,
    "Create": AclOperation.CREATE,
    "Describe": AclOperation.DESCRIBE,
    "DescribeConfigs": AclOperation.DESCRIBE_CONFIGS,
}


class SecuredKafka:
    """One node. Listeners: ``SECURE`` (SASL_SSL, SCRAM), ``ELSEWHERE`` (the same with a
    certificate for another host), ``MUTUAL`` (SSL; the client's certificate is its login),
    ``TOKEN`` (SASL_PLAINTEXT, OAUTHBEARER with unsigned tokens, which have to be renewed within
    seconds).
    """

    def __init__(self, version: str, folder: Path, *, token_seconds: int = 5) -> None:
        self.folder = folder
        make_certificates(folder)
        scram = f"{_LOGIN}.scram.ScramLoginModule required;"
        properties: dict[str, object] = {
            "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
            "super.users": "User:ANONYMOUS",
            "listener.name.token.sasl.enabled.mechanisms": "OAUTHBEARER",
            "listener.name.token.oauthbearer.sasl.jaas.config": f"{_LOGIN}.{_BEARER} required;",
            "listener.name.token.oauthbearer.connections.max.reauth.ms": token_seconds * 1000,
        }
        for listener, certificate in (
            ("secure", "here"),
            ("elsewhere", "elsewhere"),
            ("mutual", "here"),
        ):
            properties |= {
                f"listener.name.{listener}.sasl.enabled.mechanisms": "SCRAM-SHA-512",
                f"listener.name.{listener}.scram-sha-512.sasl.jaas.config": scram,
                f"listener.name.{listener}.ssl.keystore.type": "PEM",
                f"listener.name.{listener}.ssl.keystore.location": folder / f"{certificate}.pem",
                f"listener.name.{listener}.ssl.truststore.type": "PEM",
                f"listener.name.{listener}.ssl.truststore.location": folder / "authority.crt",
                f"listener.name.{listener}.ssl.client.auth": "required"
                if listener == "mutual"
                else "requested",
            }
        self.kafka = LocalKafka(
            version=version,
            extra_listeners={
                "SECURE": "SASL_SSL",
                "ELSEWHERE": "SASL_SSL",
                "MUTUAL": "SSL",
                "TOKEN": "SASL_PLAINTEXT",
            },
            properties=properties,
            format_arguments=["--add-scram", f"SCRAM-SHA-512=[name=etl,password={PASSWORD}]"],
        )

    def __enter__(self) -> SecuredKafka:
        self.kafka.start()
        self._admin = AdminClient({"bootstrap.servers": self.kafka.bootstrap_servers})
        return self

    def __exit__(self, *_: object) -> None:
        self.kafka.stop()

    def bootstrap(self, listener: str = "SECURE") -> str:
        return self.kafka.servers_on(listener)

    def options(self, **changed: str | None) -> dict[str, str]:
        """A login that works, in Kafka's own names (``sasl_password=…`` changes one, None leaves
        it out).
        """
        login: dict[str, str | None] = {
            "security.protocol": "SASL_SSL",
            "sasl.mechanism": "SCRAM-SHA-512",
            "sasl.username": "etl",
            "sasl.password": PASSWORD,
            "ssl.ca.location": str(self.folder / "authority.crt"),
        }
        login |= {name.replace("_", "."): value for name, value in changed.items()}
        return {name: value for name, value in login.items() if value is not None}

    def client_certificate(self) -> dict[str, str]:
        """More options: a certificate of the client's own, its key under a password."""
        return {
            "ssl.keystore.type": "PEM",
            "ssl.keystore.certificate.chain": (self.folder / "client.crt").read_text(),
            "ssl.keystore.key": (self.folder / "client.locked").read_text(),
            "ssl.key.password": KEY_PASSWORD,
        }

    def grant(self, acls: Iterable[Acl]) -> None:
        wanted = [self._binding(acl) for acl in acls]
        for done in self._admin.create_acls(wanted).values():
            done.result(30)
        self._wait(lambda known: set(wanted) <= known)

    def revoke(self, acls: Iterable[Acl]) -> None:
        gone = [self._binding(acl) for acl in acls]
        filters = [
            AclBindingFilter(
                b.restype,
                b.name,
                b.resource_pattern_type,
                b.principal,
                b.host,
                b.operation,
                b.permission_type,
            )
            for b in gone
        ]
        for done in self._admin.delete_acls(filters).values():
            assert len(done.result(30)) == 1
        self._wait(lambda known: not set(gone) & known)

    def _binding(self, acl: Acl) -> AclBinding:
        return AclBinding(
            _RESOURCES[acl.kind.value],
            acl.name,
            ResourcePatternType[acl.pattern_type.upper()],
            PRINCIPAL,
            "*",
            _OPERATIONS[acl.operation],
            AclPermissionType.ALLOW,
        )

    def _wait(self, holds: Any) -> None:
        """The broker's own authorizer answers this: when it says so, the next request is judged by
        it.
        """
        everything = AclBindingFilter(
            ResourceType.ANY,
            None,
            ResourcePatternType.ANY,
            None,
            None,
            AclOperation.ANY,
            AclPermissionType.ANY,
        )
        deadline = time.monotonic() + ACL_SECONDS
        while not holds(set(self._admin.describe_acls(everything).result(30))):
            assert time.monotonic() < deadline, "the broker has not heard of the ACLs"
            time.sleep(0.02)


class SecuredPipeline(Pipeline):
    """A pipeline as ``User:etl``; feeding and reading back stay with the keeper. Its ledger topic
    does not exist.
    """

    def __init__(self, spark: Any, secured: SecuredKafka, *rest: Any, **partitions: int) -> None:
        super().__init__(spark, secured.kafka, *rest, **partitions)
        self.secured = secured
        self.ledger_topic = f"ledger-of-{self.name}"

    def acls(self, **more: Any) -> list[Acl]:
        """The whole set; see :func:`needed`."""
        return minimal_acls(
            pipeline_id=self.name,
            topics=[self.output],
            ledger_topic=self.ledger_topic,
            **{"source_topics": [self.source]} | more,
        )

    def needed(self) -> list[Acl]:
        return [acl for acl in self.acls() if acl.need is not Need.OPTIONAL]

    def frame(self, *, topic: str | Sequence[str] | None = None, **options: Any) -> Any:
        spark_options = {"kafka.fetch.max.wait.ms": 20} | options.pop("spark_options", {})
        settings: dict[str, Any] = {
            "bootstrap_servers": self.secured.bootstrap(),
            "options": self.secured.options(),
            "starting": "earliest",
            "max_offsets_per_trigger": 40,
        } | options
        if "topic_pattern" not in settings:
            settings["topic"] = topic or self.source
        return onceward.kafka_source(self.spark, spark_options=spark_options, **settings)

    def sink(self, **options: Any) -> onceward.KafkaSink:
        login: dict[str, Any] = {
            "bootstrap_servers": self.secured.bootstrap(),
            "options": self.secured.options(),
        }
        return super().sink(**(login | options))
