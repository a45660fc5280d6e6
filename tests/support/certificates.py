"""Certificates for a test: an authority of its own, and what it has signed. Made by
``openssl``.
"""

from __future__ import annotations

import subprocess
from pathlib import Path

KEY_PASSWORD = "the-canary-sings-Key9"


def make_certificates(folder: Path) -> None:
    """An authority, a server certificate for this host, one for another, and a client's whose key
    has a password.

    ``*.pem`` holds key and certificate of a server, as Kafka wants them.
    """
    _run(
        folder,
        "req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=authority -keyout authority.key -out "
        "authority.crt",
    )
    names = {
        "here": "IP:127.0.0.1",
        "elsewhere": "DNS:elsewhere.example",
        "client": "DNS:client.example",
    }
    for name, alternative in names.items():
        (folder / f"{name}.ext").write_text(f"subjectAltName={alternative}\n")
        _run(
            folder,
            f"req -new -newkey rsa:2048 -nodes -subj /CN={name} -keyout {name}.key -out "
            f"{name}.csr",
        )
        _run(
            folder,
            f"x509 -req -in {name}.csr -CA authority.crt -CAkey authority.key -CAcreateserial "
            f"-days 2 "
            f"-extfile {name}.ext -out {name}.crt",
        )
        (folder / f"{name}.pem").write_text(
            (folder / f"{name}.key").read_text() + (folder / f"{name}.crt").read_text()
        )
    # The one encryption of keys that both Java's PEM reader (KIP-651) and OpenSSL 3 know.
    _run(
        folder,
        f"pkcs8 -topk8 -v1 PBE-SHA1-3DES -in client.key -out client.locked -passout "
        f"pass:{KEY_PASSWORD}",
    )


def _run(folder: Path, arguments: str) -> None:
    subprocess.run(["openssl", *arguments.split()], cwd=folder, check=True, capture_output=True)
