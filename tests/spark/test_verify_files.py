"""``onceward verify --files``: what it proves of files that a query has written, and every way to
be wrong.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

import onceward as ow
from onceward.files.settings import Format, Layout

STATUS = {"exactly_once": 0, "violated": 1, "inconclusive": 2}


def written(
    spark: SparkSession, folder: Path, layout: Layout, form: Format = "parquet", name: str = "p"
) -> Path:
    """Three batches of ten rows, in three lives of a query."""
    (folder / "in").mkdir(exist_ok=True)
    for life in range(3):
        (folder / "in" / f"{life}.txt").write_text("".join(f"{life}-{row}\n" for row in range(10)))
        sink = ow.FileSink(path=folder / "out", pipeline_id=name, layout=layout, format=form)
        query = spark.readStream.text(str(folder / "in")).writeStream.foreachBatch(sink)
        query = query.option("checkpointLocation", str(folder / f"checkpoint-{name}")).trigger(
            availableNow=True
        )
        query.start().awaitTermination()
    return folder / "out"


def verified(root: Path, *options: str, name: str = "p") -> dict[str, Any]:
    command = [
        sys.executable,
        "-m",
        "onceward_verify",
        "--files",
        str(root),
        "--pipeline-id",
        name,
    ]
    done = subprocess.run(
        [*command, "--output", "json", *options], capture_output=True, text=True, check=False
    )
    answer: dict[str, Any] = json.loads(done.stdout)
    assert done.returncode == answer["exit_status"] == STATUS[answer["verdict"]], done.stderr
    return answer


def anomalies(answer: dict[str, Any]) -> list[str]:
    return sorted(one["name"] for one in answer["anomalies"])


def test_every_way_to_be_wrong_is_named(spark: SparkSession, tmp_path: Path) -> None:
    root = written(spark, tmp_path, "batches")
    well = verified(root, "--expect-caught-up")
    assert well["verdict"] == "exactly_once", well
    assert well["facts"]["ledger"]["batches"] == 3
    assert well["facts"]["ledger"]["records"] == 30
    (first, second, third) = sorted(root.glob("batch=*"))
    one = next(second.glob("*.parquet"))
    whole = one.read_bytes()

    def wrong(*names: str) -> None:
        assert anomalies(verified(root)) == sorted(names)

    shutil.copy(one, third / "part-once-more.parquet")
    wrong("unaccounted-write")
    assert verified(root, "--shared-table")["verdict"] == "exactly_once"
    (third / "part-once-more.parquet").unlink()
    one.write_bytes(whole[:-1])
    wrong("state-mismatch")
    one.write_bytes(bytes(len(whole)))
    wrong("state-mismatch")
    one.unlink()
    wrong("lost-write")
    one.write_bytes(whole)
    assert verified(root)["verdict"] == "exactly_once"
    spark.range(9).selectExpr("CAST(id AS STRING) AS value").coalesce(1).write.parquet(
        str(tmp_path / "others")
    )
    fewer = next((tmp_path / "others").glob("*.parquet"))
    # The batch as it was decided, and as it was finished
    slots = sorted((root / "_onceward" / "ledger" / "p").glob("*.json"))[-2:]
    before = [slot.read_text() for slot in slots]
    for slot, text in zip(slots, before, strict=True):
        told = json.loads(text)
        (committable,) = told["outputs"]["files"]["data"]["committables"]
        (name,) = committable["files"]
        committable["files"][name] = fewer.stat().st_size
        slot.write_text(json.dumps(told))
    shutil.copy(fewer, third / name)
    wrong("lost-write")
    slots[0].write_text(before[0])
    slots[1].unlink()
    assert "lost-write" not in anomalies(verified(root))
    shutil.move(first, tmp_path / "elsewhere")
    assert "lost-write" in anomalies(verified(root))


@pytest.mark.parametrize(
    ("layout", "form"), [("flat", "parquet"), ("batches", "text"), ("flat", "orc")]
)
def test_layouts_and_formats(
    spark: SparkSession, tmp_path: Path, layout: Layout, form: Format
) -> None:
    root = written(spark, tmp_path, layout, form)
    assert verified(root)["verdict"] == "exactly_once"
    (root / f"stray.{form}").write_text("x")
    assert anomalies(verified(root)) == ["unaccounted-write"]


def test_a_ledger_that_cannot_be_read_is_no_accusation(
    spark: SparkSession, tmp_path: Path
) -> None:
    root = written(spark, tmp_path, "batches")
    max((root / "_onceward" / "ledger" / "p").glob("*.json")).write_text("{")
    assert (verified(root)["verdict"], verified(root)["anomalies"]) == ("inconclusive", [])


def test_another_pipeline_beside_it_is_let_alone(spark: SparkSession, tmp_path: Path) -> None:
    root = written(spark, tmp_path, "batches")
    written(spark, tmp_path, "batches", name="q")
    assert verified(root)["verdict"] == verified(root, name="q")["verdict"] == "exactly_once"


def test_a_batch_that_is_decided_and_not_published_yet(
    spark: SparkSession, tmp_path: Path
) -> None:
    root = written(spark, tmp_path, "batches")
    slots = sorted((root / "_onceward" / "ledger" / "p").glob("*.json"))
    assert json.loads(slots[-1].read_text())["state"] == "finished"
    slots[-1].unlink()  # as it was before the driver had published it
    folder = max(root.glob("batch=*"))
    folder.rename(root / "_onceward" / "prepared" / "later")
    assert verified(root)["verdict"] == "inconclusive"
    assert anomalies(verified(root, "--expect-caught-up")) == ["open-transaction"]


def test_a_ledger_that_is_not_there_is_said(tmp_path: Path) -> None:
    answer = verified(tmp_path)
    assert answer["verdict"] == "inconclusive"
