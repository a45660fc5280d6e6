"""The rules of language that a machine can check, measured by ``tools/code_figures.py``.

Each list of exemptions may only shrink.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from onceward import errors
from tools.code_figures import WIDTH, Code, Offender, files_below

ROOT = Path(__file__).resolve().parents[2]

NO_VERB: set[str] = set()
"""Public functions whose docstring does not begin with a verb: ``file: name``."""

TWO_MEANINGS = {
    "Landing",
    "OpenStagingWriter",
    "Rows",
    "StagingWriter",
    "TransactionWriter",
    "Written",
    "_Relation",
}
"""Names of classes that two modules define."""

LONG = {
    "onceward/kafka/sink/task_reports.py: _in_chains",
    "onceward/kafka/wire/acls.py: minimal_acls",
    "onceward/kafka/wire/options/settings.py: settings_from_options",
    "onceward/sql/mysql/refusals.py: refusal",
}
"""Functions of more than 50 lines: ``file: name``."""

WIDE = {
    "onceward/cli/doctor/checks.py",
    "onceward/cli/doctor/command.py",
    "onceward/cli/doctor/consumers.py",
    "onceward/custom/__init__.py",
    "onceward/custom/fan_out.py",
    "onceward/custom/resettable/offsets.py",
    "onceward/custom/resettable/ranges.py",
    "onceward/custom/resettable/reader.py",
    "onceward/custom/resettable/source.py",
    "onceward/custom/two_phase.py",
    "onceward/delivery/opensearch_answers.py",
    "onceward/delivery/opensearch_writer.py",
    "onceward/delivery/redis_writer.py",
    "onceward/delivery/row_files.py",
    "onceward/delivery/sink.py",
    "onceward/delivery/target.py",
    "onceward/delivery/upsert_sink.py",
    "onceward/files/ledger.py",
    "onceward/files/manifest.py",
    "onceward/files/publishing.py",
    "onceward/files/sink.py",
    "onceward/files/target.py",
    "onceward/formats/avro/decoding.py",
    "onceward/formats/avro/encoding.py",
    "onceward/formats/avro/step.py",
    "onceward/formats/debezium/changes.py",
    "onceward/formats/debezium/decoding.py",
    "onceward/formats/debezium/encoding.py",
    "onceward/formats/debezium/images.py",
    "onceward/formats/debezium/types.py",
    "onceward/formats/json/decoding.py",
    "onceward/formats/json/types.py",
    "onceward/formats/registry/client.py",
    "onceward/formats/registry/conversation.py",
    "onceward/formats/registry/http.py",
    "onceward/formats/registry/references.py",
    "onceward/formats/validation.py",
    "onceward/kafka/records/checksum.py",
    "onceward/kafka/records/columns.py",
    "onceward/kafka/records/layout.py",
    "onceward/kafka/sink/columns.py",
    "onceward/kafka/sink/dead_letters.py",
    "onceward/kafka/sink/rows.py",
    "onceward/kafka/sink/run.py",
    "onceward/kafka/sink/sequencer/epoch.py",
    "onceward/kafka/sink/sequencer/frames.py",
    "onceward/kafka/sink/sequencer/leases.py",
    "onceward/kafka/sink/sequencer/listener.py",
    "onceward/kafka/source/lineage.py",
    "onceward/kafka/wire/transactions/states.py",
    "onceward/lake/iceberg.py",
    "onceward/lake/sinks.py",
    "onceward/operate/supervise.py",
    "onceward/spark/batch/query.py",
    "onceward/spark/tables/avro_java.py",
    "onceward/spark/tables/delta_table.py",
    "onceward/sql/ledger/mysql.py",
    "onceward/sql/mysql/catalogue.py",
    "onceward/sql/mysql/prepared.py",
    "onceward/sql/postgresql/catalogue.py",
    "onceward/sql/postgresql/prepared.py",
    "onceward/sql/sink/prepared.py",
    "onceward/sql/sink/sink.py",
}
"""Files with lines that cannot be shorter: tables, addresses."""


@pytest.fixture(scope="module")
def code() -> Code:
    return Code.read(files_below(ROOT), whole=True)


def _short(place: Offender) -> str:
    return f"{place.path}: {place.text.split()[0].rstrip(':')}"


def test_public_docstrings_begin_with_a_verb(code: Code) -> None:
    assert set(map(_short, code.public_without_verb())) <= NO_VERB


def test_a_class_name_means_one_thing(code: Code) -> None:
    assert {place.text for place in code.classes_twice()} <= TWO_MEANINGS


def test_no_function_is_longer_than_a_screen(code: Code) -> None:
    assert set(map(_short, code.long_functions())) <= LONG


def test_lines_fit(code: Code) -> None:
    assert {place.path for place in code.wide_lines()} <= WIDE, (
        f"lines of more than {WIDTH} columns"
    )


def test_the_branches_of_the_tree_of_errors_are_drawn() -> None:
    drawn = re.findall(r"[├└]── (\w+)", errors.__doc__ or "")
    kinds = [kind for kind in vars(errors).values() if isinstance(kind, type)]
    assert drawn == [kind.__name__ for kind in kinds if kind.__base__ is errors.OncewardError]
