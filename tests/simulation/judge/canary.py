"""A canary password in the sink's options, and where it must not be found (I12)."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from typing import Any

from simulation.judge.chain import Chain
from simulation.judge.facts import Facts
from simulation.judge.verdict import Violation

CANARY = "canary-7f3b9a-sings"
"""For ``sasl.password``. Nothing in the simulated world asks for a login."""
_FORMS = (CANARY.encode(), base64.b64encode(CANARY.encode()), CANARY.encode().hex().encode())


def judge_secrets(facts: Facts, chain: Chain | None) -> list[Violation]:
    """No error text, no file beside the checkpoint and no ledger record has it, in clear or
    encoded.
    """
    texts = list(_texts(facts, chain))
    everything = b"\0".join(text for _, text in texts)
    forms = [form for form in _FORMS if form in everything]
    return [
        Violation("I12", f"the password is in {where}")
        for where, text in texts
        if any(form in text for form in forms)
    ]


def _texts(facts: Facts, chain: Chain | None) -> Iterator[tuple[str, bytes]]:
    for start in facts.world.starts:
        error: BaseException | None = start.error
        seen: set[int] = set()
        while error is not None and id(error) not in seen:
            seen.add(id(error))
            told = (
                f"{error} {error!r} {getattr(error, 'details', '')} "
                f"{getattr(error, 'next_step', '')}"
            )
            yield f"the error of start {start.number}, {type(error).__name__}", told.encode()
            error = error.__cause__ or error.__context__
    for name, data in files_of(facts.world.files.hdfs):
        yield f"file {name}", data
    if chain is not None:
        for record in chain.written:
            yield f"ledger record {record.at}", record.value


def files_of(tree: Any) -> Iterator[tuple[str, bytes]]:
    """Every file of a file system, with its name and what it holds."""
    folders = [("", tree.root)]
    while folders:
        path, folder = folders.pop()
        for name, node in folder.entries.items():
            if hasattr(node, "data"):
                yield f"{path}/{name}", bytes(name.encode() + b"\n" + node.data)
            else:
                folders.append((f"{path}/{name}", node))
