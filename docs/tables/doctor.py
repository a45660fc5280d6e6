"""Write docs/reference/doctor.md from the code: every kind of misconfiguration that ``onceward doctor`` finds.

Run ``python docs/tables/doctor.py``.
"""

from __future__ import annotations

from pathlib import Path

from onceward.cli.doctor.kinds import KINDS, Misconfiguration

PAGE = Path(__file__).parents[1] / "reference" / "doctor.md"

_BEGIN = """\
# What doctor finds

Written by `docs/tables/doctor.py` from the code; a test says when it is not up to date. `onceward doctor` looks at
these kinds of misconfiguration, changes nothing, and prints a line for each that it finds, with the next step. Its exit
status is 1 where one of them is **fatal**: a pipeline would stop, or could lose records. A setting that may not be read
is named as not checked.

```text
onceward doctor --bootstrap-servers broker:9092 --topic people-clean --source-topic people --pipeline-id people-etl
onceward doctor --consumers --bootstrap-servers broker:9092 --topic people-clean
onceward doctor --target postgresql://shop:secret@database/shop --tables orders
onceward doctor --target redis://:secret@cache:6379/0
onceward doctor --target https://search:9200 --tables customers
onceward doctor --registry https://registry:8081 --subject people-value --command-config registry.properties
onceward doctor --mysql mysql://cdc:secret@database:3306 --tables shop.orders
```

"""
_HEAD = "| kind | setting | amiss | why | what to do |\n|---|---|---|---|---|\n"


def page() -> str:
    """Return the whole page."""
    text = _BEGIN
    for subject in dict.fromkeys(kind.subject for kind in KINDS):
        text += f"## {subject[0].upper()}{subject[1:]}\n\n{_HEAD}"
        text += "".join(_row(kind) for kind in KINDS if kind.subject == subject) + "\n"
    return text.rstrip() + "\n"


def _row(kind: Misconfiguration) -> str:
    name = f"`{kind.name}`" + (", **fatal**" if kind.status == "fail" else "")
    names = {"name": "TOPIC", "servers": "BROKERS", "login": "LOGIN", "table": "TABLE",
             "alike": "(those alike)"}  # fmt: skip
    if kind.subject in ("OpenSearch", "schema registry"):
        names["name"] = "NAME"
    names |= {"transaction_timeout_ms": "…", "largest_source_record": "…"}
    texts = (part.format(**names).replace("|", "\\|") for part in (kind.why, kind.fix))
    return f"| {name} | `{kind.setting}` | {kind.amiss} | " + " | ".join(texts) + " |\n"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
