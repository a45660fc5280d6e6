"""ACLs as shell lines, as a table and as JSON. Called by ``onceward doctor --acls``; pure."""

from __future__ import annotations

import json
import shlex
from collections.abc import Sequence

from onceward.kafka.wire.acls import Acl, Kind, Need

_HEADINGS = {
    Need.ALWAYS: "Needed as long as the pipeline runs, with transaction version 1 (brokers up to "
    "3.9) and 2 (4.x):",
    Need.FIRST_START: "Needed until the ledger topic exists; not at all if somebody else creates "
    "it (--ledger-exists):",
    Need.OPTIONAL: "Not needed: without these the pipeline runs, and checks less before it "
    "starts.",
}

_TRUST = (
    "# Kafka has no ACL on keys: who may write to a ledger topic may write any pipeline's record "
    "there, and a forged",
    "# one makes a batch look committed. Give pipelines that do not trust each other ledger "
    "topics of their own",
    "# (ledger_topic= of the sink, --ledger-topic here), and let nobody else write to them.",
)


def as_commands(lines: Sequence[Acl], principal: str, bootstrap_servers: str | None) -> str:
    """Format ACLs for a shell, optional ones commented out; without servers ``$BOOTSTRAP``."""
    servers = shlex.quote(bootstrap_servers) if bootstrap_servers else '"$BOOTSTRAP"'
    connection = f"--bootstrap-server {servers}"
    text = [
        "# Whoever runs these lines needs Alter on the cluster; add --command-config for a login.",
        *_TRUST,
    ]
    for need, heading in _HEADINGS.items():
        of_need = [line for line in lines if line.need is need]
        if of_need:
            text += ["", f"# {heading}"]
        for line in of_need:
            mark = "# " if need is Need.OPTIONAL else ""
            text.append(f"{mark}{line.command(principal, connection)}  # {line.why}")
    return "\n".join(text)


def as_table(lines: Sequence[Acl], principal: str) -> str:
    """Format ACLs as a table: operation, type of resource, name, when it is needed, why."""
    rows = [("OPERATION", "RESOURCE", "NAME", "PATTERN", "NEEDED", "WHY")]
    rows += [
        (line.operation, line.kind.value, line.name, line.pattern_type, line.need.value, line.why)
        for line in lines
    ]
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    table = [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    ]
    return "\n".join([f"For {principal}, with transaction version 1 and 2:", *table])


def as_json(lines: Sequence[Acl], principal: str) -> str:
    """Format ACLs as a list with one object a line."""
    return json.dumps(
        [
            {
                "principal": principal,
                "operation": line.operation,
                "resource_type": line.kind.value,
                "resource": "kafka-cluster" if line.kind is Kind.CLUSTER else line.name,
                "pattern_type": line.pattern_type,
                "needed": line.need.value,
                "transaction_versions": [1, 2],
                "why": line.why,
            }
            for line in lines
        ],
        indent=2,
    )
