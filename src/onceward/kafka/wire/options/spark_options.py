"""Our security settings in the Java client's names, so that one set of options reaches Spark's own
Kafka source too.

Called by ``kafka.wire.options.settings`` when a source is constructed (driver). Spark hands
``kafka.*`` to the Java consumer, which knows other names for PEM files and SASL users than
librdkafka and we do.
"""

from __future__ import annotations

from onceward.kafka.wire.options.security import Security

_LOGIN_MODULES = {
    "PLAIN": "org.apache.kafka.common.security.plain.PlainLoginModule",
    "SCRAM-SHA-256": "org.apache.kafka.common.security.scram.ScramLoginModule",
    "SCRAM-SHA-512": "org.apache.kafka.common.security.scram.ScramLoginModule",
}


def java_security_options(security: Security) -> dict[str, str]:
    """``security`` in the Java consumer's names. The result holds secrets.

    A certificate and a key in files of their own are passed as text, because Java wants both in
    one place. OAUTHBEARER has been refused before: its tokens come from a Java class.
    """
    java = {"security.protocol": security.protocol}
    if security.uses_sasl:
        java |= _sasl(str(security.mechanism), security.username or "", security.password or "")
    if security.uses_tls:
        java |= _trust(security.ca_file, security.ca_pem)
        java |= _own_certificate(security)
        if security.key_password:
            java["ssl.key.password"] = security.key_password
        if not security.check_host_name:
            java["ssl.endpoint.identification.algorithm"] = ""
    return java


def _sasl(mechanism: str, username: str, password: str) -> dict[str, str]:
    login = (
        f'{_LOGIN_MODULES[mechanism]} required username="{_quoted(username)}" '
        f'password="{_quoted(password)}";'
    )
    return {"sasl.mechanism": mechanism, "sasl.jaas.config": login}


def _quoted(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"')


def _trust(file: str | None, pem: str | None) -> dict[str, str]:
    text = _text(file, pem)
    return {"ssl.truststore.type": "PEM", "ssl.truststore.certificates": text} if text else {}


def _own_certificate(security: Security) -> dict[str, str]:
    certificate = _text(security.certificate_file, security.certificate_pem)
    key = _text(security.key_file, security.key_pem)
    if certificate is None:
        return {}
    if security.certificate_file and key is None:  # one file with both, as Java has it
        return {"ssl.keystore.type": "PEM", "ssl.keystore.location": security.certificate_file}
    return {
        "ssl.keystore.type": "PEM",
        "ssl.keystore.certificate.chain": certificate,
        **({"ssl.keystore.key": key} if key else {}),
    }


def _text(file: str | None, pem: str | None) -> str | None:
    if file is None:
        return pem
    with open(file, encoding="ascii") as source:
        return source.read()
