"""ACLs: what docs/how-to/dead-letters.md says that a replay needs is enough, and each line of it
is needed.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from secured_cluster import SecuredKafka

from onceward.cli.groups import DENIED
from onceward.kafka.wire.acls import Acl, Kind, Need
from support.dead_letter_desk import Desk

PAGE = Path(__file__).resolve().parents[2] / "docs" / "how-to" / "dead-letters.md"
_LINE = re.compile(
    r"^\| `(Read|Write|Create)` \| `(topic|transactional-id)` `([\w.-]+)`", re.MULTILINE
)
LINES = _LINE.findall(PAGE.read_text().split("### Rights")[1])
assert len(LINES) == 6


class SecuredDesk(Desk):
    """Written and read by the cluster's keeper; replayed by somebody who has no right that is not
    granted here.
    """

    def __init__(self, secured: SecuredKafka, folder: Path, *readers: Any) -> None:
        super().__init__(secured.kafka.bootstrap_servers, *readers)
        self.ledger += "-new"  # nobody has made it
        self.secured = secured
        self.config = folder / "client.properties"
        self.config.write_text(
            "".join(f"{name}={value}\n" for name, value in secured.options().items())
        )

    def acls(self) -> list[Acl]:
        named = {
            "people-dead-letters": self.dead,
            "people": self.source,
            "onceward-ledger": self.ledger,
        }
        named["dead-letters.people-dead-letters"] = self.pipeline
        return [
            Acl(operation, Kind(kind), named[name], Need.ALWAYS, "")
            for operation, kind, name in LINES
        ]

    def ask(self, verb: str) -> Any:
        return self.command(
            verb, "--command-config", str(self.config), servers=self.secured.bootstrap()
        )


@pytest.fixture
def desk(
    secured: SecuredKafka, tmp_path: Path, new_topic: Callable[..., str], read_committed: Any
) -> SecuredDesk:
    return SecuredDesk(secured, tmp_path, new_topic, read_committed)


@pytest.mark.fault("acl-denied")
def test_the_lines_of_the_page_are_enough(secured: SecuredKafka, desk: SecuredDesk) -> None:
    values = desk.write(6)
    secured.grant(desk.acls()[:2])
    for verb in ("list", "show"):
        done = desk.ask(verb)
        assert done.exit_code == 0, done.output
    secured.grant(desk.acls()[2:])
    done = desk.ask("replay")
    assert done.exit_code == 0, done.output
    desk.assert_fed_back_once(values)


@pytest.mark.fault("acl-denied")
@pytest.mark.parametrize("position", range(len(LINES)), ids=[" ".join(line) for line in LINES])
def test_without_any_one_of_them_it_stops_and_says_which(
    secured: SecuredKafka, desk: SecuredDesk, position: int
) -> None:
    values = desk.write(6)
    missing = desk.acls()[position]
    secured.grant(acl for acl in desk.acls() if acl != missing)
    done = desk.ask("replay")
    assert done.exit_code == DENIED
    assert "AccessDenied" in done.output
    assert missing.operation in done.output
    assert missing.name in done.output
    assert "docs/how-to/dead-letters.md" in done.output
    assert desk.fed_back() == []
    secured.grant([missing])
    done = desk.ask("replay")
    assert done.exit_code == 0, done.output
    desk.assert_fed_back_once(values)
