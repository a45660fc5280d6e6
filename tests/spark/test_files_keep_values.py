"""Values that formats change on the way, if nobody looks after them: read back by Spark, or
refused by name.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f
from test_files_by_sparks_writers import sink, visible, write

from onceward import read_files
from onceward.errors import ConfigurationError, InvalidColumn, RowRefused

TEXTS = [
    *(
        None,
        "",
        "a",
        " a ",
        "  ",
        "\t",
        '"',
        'a"b',
        "a\\",
        "\\",
        'a\\"b',
        '\\"',
        "a,b",
        "a\nb",
        "a\rb",
        "a\r\nb",
        "\n",
    ),
    *(
        "#c",
        "\0",
        "ä",
        "NaN",
        "null",
        '""',
        "\\\n",
        '"\n',
        "\u2028",
        "\x85",
        "\xa0",
        ' "q" ',
        "\\n",
        "\x1c",
    ),
]
READ: dict[str, dict[str, Any]] = {
    "csv": {"multiLine": True, "lineSep": "\n", "nullValue": "\\N"},
    "json": {},
}
for options in READ.values():
    options["columnNameOfCorruptRecord"] = "no such column"
"""As docs/how-to/files.md has it."""


def every_kind(spark: SparkSession) -> DataFrame:
    texts = spark.createDataFrame(
        [(text, text, number) for number, text in enumerate(TEXTS)], "a string, b string, n int"
    )
    return texts.coalesce(1).selectExpr(
        "n",
        "a",
        "b",
        "timestamp_micros(1767323045123456 + n * 86400000000) AS micros",
        "timestamp'1800-01-02 03:04:05.000001' AS long_ago",  # where offsets have seconds
        "timestamp'+10001-01-02 03:04:05' AS far_off",
        "timestamp_ntz'2026-03-29 02:30:00.000001' AS local",  # which is no time in Amsterdam
        "date'0001-01-02' AS day",
        "double('NaN') AS nan",
        "double('-Infinity') AS infinite",
        "float('1.1') AS small",
        "-0.0d AS zero",
        "CAST('1e-18' AS DECIMAL(38, 18)) AS decimal",
        "9223372036854775807 AS long",
        "n > 3 AS yes",
        "a AS _corrupt_record",
        "b AS behind",
    )


@pytest.mark.parametrize("file_format", ["csv", "json", "parquet", "orc", "avro"])
def test_what_is_read_back_is_what_was_written(
    spark: SparkSession, tmp_path: Path, file_format: str
):
    zones: Any = spark._jvm.java.util.TimeZone
    of_jvm = zones.getDefault()
    spark.conf.set("spark.sql.session.timeZone", "Europe/Amsterdam")
    try:
        zones.setDefault(zones.getTimeZone("UTC" if file_format == "orc" else "Asia/Tokyo"))
        frame = every_kind(spark)
        if file_format != "csv":
            frame = frame.selectExpr(
                "*",
                "X'00ff41' AS bytes",
                "map('a', CAST(NULL AS INT)) AS map",
                "array('', a) AS list",
            )
        write(sink(tmp_path, format=file_format), frame)
        reader = (
            spark.read.schema(frame.schema)
            .options(**READ.get(file_format, {}))
            .format(file_format)
        )
        assert told(reader.load(str(tmp_path / "out")).drop("batch")) == told(frame)
        options = {
            k: v for k, v in READ.get(file_format, {}).items() if not k.startswith("column")
        }
        seen = read_files(spark, tmp_path / "out", schema=frame.schema, options=options)
        assert told(seen.drop("batch")) == told(frame)
    finally:
        zones.setDefault(of_jvm)
        spark.conf.unset("spark.sql.session.timeZone")


def told(frame: DataFrame) -> list[Any]:
    """As text, which Python's own types would cut."""
    as_they_are = ("map<string,int>", "array<string>", "binary")
    columns = [
        f.col(name) if kind in as_they_are else f.col(name).cast("string")
        for name, kind in ((f"`{name.replace('`', '``')}`", kind) for name, kind in frame.dtypes)
    ]
    return sorted(map(str, frame.select(*columns).collect()))


def test_options_that_are_set_stay(spark: SparkSession, tmp_path: Path):
    options = {"TIMESTAMPFORMAT": "yyyy", "ignoreleadingwhitespace": True}
    write(
        sink(tmp_path, format="csv", options=options),
        spark.sql("SELECT ' a ' AS a, timestamp'2026-01-02 03:04:05' AS b"),
    )
    assert [path.read_text() for path in visible(tmp_path)] == ["a ,2026\n"]


def test_a_session_with_old_rules_for_times_is_refused_by_name(
    spark: SparkSession, tmp_path: Path
):
    frame = spark.sql(
        "SELECT timestamp'2026-01-02 03:04:05.123456' AS a, timestamp_ntz'2026-01-02 03:04:05' AS "
        "b"
    )
    spark.conf.set("spark.sql.legacy.timeParserPolicy", "legacy")
    try:
        with pytest.raises(ConfigurationError, match="CORRECTED"):
            write(sink(tmp_path, format="json"), frame)
        write(
            sink(tmp_path, format="json", options={"timestampFormat": "yyyy"}), frame
        )  # as the error advises
    finally:
        spark.conf.unset("spark.sql.legacy.timeParserPolicy")
    assert [path.read_text() for path in visible(tmp_path)] == [
        '{"a":"2026","b":"2026-01-02T03:04:05.000000"}\n'
    ]


def test_a_session_that_cuts_timestamps_in_parquet_is_refused_by_name(
    spark: SparkSession, tmp_path: Path
):
    """Only where there are some. INT96 has more than microseconds."""
    setting = "spark.sql.parquet.outputTimestampType"
    frame = spark.sql("SELECT array(struct(timestamp'2026-01-02 03:04:05.123456' AS a)) AS list")
    before = spark.conf.get(setting)
    try:
        spark.conf.set(setting, "TIMESTAMP_MILLIS")
        with pytest.raises(ConfigurationError, match="TIMESTAMP_MICROS"):
            write(sink(tmp_path), frame)
        write(
            sink(tmp_path / "none"),
            spark.sql("SELECT timestamp_ntz'2026-01-02 03:04:05.123456' AS a"),
        )
        spark.conf.set(setting, "INT96")
        write(sink(tmp_path), frame)
    finally:
        spark.conf.set(setting, before)
    assert told(
        spark.read.schema(frame.schema).parquet(str(tmp_path / "out")).selectExpr("inline(list)")
    ) == told(frame.selectExpr("inline(list)"))


@pytest.mark.parametrize(
    ("format_name", "setting"),
    [
        ("parquet", "parquet.datetimeRebaseModeInWrite"),
        ("parquet", "parquet.int96RebaseModeInWrite"),
        ("avro", "avro.datetimeRebaseModeInWrite"),
    ],
)
def test_a_session_that_writes_dates_by_another_calendar_is_refused_by_name(
    spark: SparkSession, tmp_path: Path, format_name: str, setting: str
):
    """Only where there are some."""
    spark.conf.set(name := f"spark.sql.{setting}", "LEGACY")
    try:
        for kind in ("date", "map<string, timestamp>")["int96" in setting :]:
            frame = spark.sql(f"SELECT CAST(NULL AS {kind}) AS a")
            with pytest.raises(ConfigurationError, match=f"{name} to CORRECTED"):
                write(sink(tmp_path, format=format_name), frame)
        write(sink(tmp_path, format=format_name), spark.sql("SELECT 1 AS a"))
        spark.conf.set(name, "EXCEPTION")
        if "int96" not in setting:
            with pytest.raises(ConfigurationError, match=f"{name} to CORRECTED"):
                write(
                    sink(tmp_path / "not", format=format_name),
                    spark.sql("SELECT date'1500-01-01' AS a"),
                )
    finally:
        spark.conf.unset(name)
    assert spark.read.format(format_name).load(str(tmp_path / "out")).collect()[0].a == 1


def test_a_calendar_for_a_type_that_the_session_does_not_write_is_not_refused(
    spark: SparkSession, tmp_path: Path
):
    settings = {"outputTimestampType": "TIMESTAMP_MICROS", "int96RebaseModeInWrite": "LEGACY"}
    frame = spark.sql("SELECT timestamp'1422-06-03 00:00:00' AS a")
    for name, value in settings.items():
        spark.conf.set(f"spark.sql.parquet.{name}", value)
    try:
        write(sink(tmp_path), frame)
    finally:
        for name in settings:
            spark.conf.unset(f"spark.sql.parquet.{name}")
    assert told(read_files(spark, tmp_path / "out").select("a")) == told(frame)


def test_files_are_read_by_the_calendar_that_they_are_written_by(
    spark: SparkSession, tmp_path: Path
):
    """Whatever the session has for files of which nobody knows it."""
    frame = spark.sql("SELECT date'1422-06-03' AS a, timestamp'1422-06-03 00:00:00' AS b")
    for format_name in ("parquet", "avro"):
        write(sink(tmp_path / format_name, format=format_name), frame)
        spark.conf.set(name := f"spark.sql.{format_name}.datetimeRebaseModeInRead", "LEGACY")
        try:
            rows = read_files(spark, tmp_path / format_name / "out").select("a", "b")
            assert told(rows) == told(frame)
        finally:
            spark.conf.unset(name)


def test_orc_takes_no_times_by_a_clock_that_its_readers_may_not_have(
    spark: SparkSession, tmp_path: Path
):
    """Of that zone, the second is the first one hour later."""
    zones: Any = spark._jvm.java.util.TimeZone
    before = zones.getDefault()
    twice = spark.sql(
        "SELECT array(struct(timestamp'2025-10-26 00:30:00Z' AS a), struct(timestamp'2025-10-26 "
        "01:30:00Z' AS a)) AS list, timestamp_ntz'2025-10-26 02:30:00' AS local"
    )
    try:
        zones.setDefault(zones.getTimeZone("Europe/Berlin"))
        with pytest.raises(ConfigurationError, match=r"\(Europe/Berlin\).*user.timezone=UTC"):
            write(sink(tmp_path, format="orc"), twice)
        write(sink(tmp_path / "local", format="orc"), twice.select("local"))
        zones.setDefault(zones.getTimeZone("Etc/UTC"))
        write(sink(tmp_path, format="orc"), twice)
        read = spark.read.schema(twice.schema).orc(str(tmp_path / "out"))
        assert told(read.selectExpr("inline(list)")) == told(twice.selectExpr("inline(list)"))
        local = spark.read.orc(str(tmp_path / "local" / "out")).select("local")
        assert local.collect() == twice.select("local").collect()
    finally:
        zones.setDefault(before)


def test_rows_whose_line_would_be_blank_are_refused(spark: SparkSession, tmp_path: Path):
    """Readers pass over those. Of a line with a separator, or quotes, they do not."""
    blank = [
        ("CAST(NULL AS STRING) AS a", {}),
        ("CAST(NULL AS INT) AS a", {}),
        ("'  ' AS a", {}),
        ("CAST(NULL AS INT) AS a, CAST(NULL AS STRING) AS `b.c`", {"sep": "\t"}),
        ("CAST(NULL AS INT) AS a", {"nullValue": " "}),
    ]
    for number, (columns, options) in enumerate(blank):
        made = sink(tmp_path / str(number), format="csv", options=options, partition_by="p")
        with pytest.raises(RowRefused, match="would be blank"):
            write(made, spark.sql(f"SELECT {columns}, 1 AS p UNION ALL SELECT {columns}, 2 AS p"))
        assert visible(tmp_path / str(number)) == []
    told = [
        ("CAST(NULL AS STRING) AS a", {"quoteAll": True}),
        ("CAST(NULL AS INT) AS a", {"nullValue": "-"}),
        ("'' AS a", {}),
        ("'\n' AS a", {}),
        ("CAST(NULL AS INT) AS a, CAST(NULL AS STRING) AS b", {}),
        ("CAST(NULL AS INT) AS a, 'x' AS b", {"sep": "\t"}),
    ]
    for number, (columns, options) in enumerate(told, start=len(blank)):
        frame = spark.sql(f"SELECT {columns}")
        write(sink(tmp_path / str(number), format="csv", options=options), frame)
        options |= {"multiLine": True, "lineSep": "\n"}
        assert (
            spark.read.options(**options)
            .schema(frame.schema)
            .csv(str(tmp_path / str(number) / "out"))
            .count()
            == 1
        )


@pytest.mark.parametrize("value", ["CAST(NULL AS STRING)", "'a\nb'", "'a\rb'", "'\ufeffa'"])
def test_a_text_file_takes_no_value_that_it_could_not_tell(
    spark: SparkSession, tmp_path: Path, value: str
):
    with pytest.raises(RowRefused, match="column value"):
        write(
            sink(tmp_path, format="text"),
            spark.sql(f"SELECT 'fine' AS value UNION ALL SELECT {value}"),
        )
    assert visible(tmp_path) == []


def test_a_text_file_with_lines_of_its_own(spark: SparkSession, tmp_path: Path):
    lines = {"lineSep": "|"}
    frame = spark.createDataFrame(
        [("a\nb",), ("",), (" ",), ("\u2028\x85\x0b",)], "value string"
    ).coalesce(1)
    write(sink(tmp_path, format="text", options=lines), frame)
    assert (
        spark.read.options(**lines).text(str(tmp_path / "out")).drop("batch").collect()
        == frame.collect()
    )
    with pytest.raises(RowRefused, match="column value"):
        write(
            sink(tmp_path / "again", format="text", options=lines),
            spark.sql("SELECT 'a|b' AS value"),
        )


def test_csv_columns_keep_their_order(spark: SparkSession, tmp_path: Path):
    """Within a batch and from start to start: a value is told by its place alone, also below a
    header.
    """
    made = sink(tmp_path, format="csv", partition_by="p", options={"header": True})
    first = spark.sql("SELECT 1 AS a, 2 AS b, 3 AS p")
    with pytest.raises(InvalidColumn, match=r"b, a.*a, b"):
        write(made, first, spark.sql("SELECT 2 AS b, 1 AS a, 3 AS p"))
    write(made, first, spark.sql("SELECT 1 AS a, 3 AS P, 2 AS b"))
    assert len(visible(tmp_path)) == 2
    with pytest.raises(InvalidColumn, match="a, b, c"):
        write(sink(tmp_path, format="csv", pipeline_id="two", partition_by="p",
            options={"header": True}),
              spark.sql("SELECT 1 AS a, 2 AS b, 3 AS p, 4 AS c"))  # fmt: skip


@pytest.mark.parametrize(
    "value", ["array(map(1, 2))", "'x' COLLATE UTF8_LCASE", "array(named_struct('a-b', 1))"]
)
def test_avro_takes_no_type_or_name_that_it_has_not(
    spark: SparkSession, tmp_path: Path, value: str
):
    with pytest.raises(
        InvalidColumn, match=r"cannot be written as avro: (Unexpected type|Illegal char)"
    ):
        write(sink(tmp_path, format="avro"), spark.sql(f"SELECT {value} AS a"))


@pytest.mark.parametrize(
    "column",
    [
        "1 AS `a``b`",
        "1 AS ``",
        "array(named_struct('a`b', 1)) AS s",
        "map(1, struct(1 AS ``)) AS m",
    ],
)
def test_orc_takes_no_name_that_its_readers_lose(spark: SparkSession, tmp_path: Path, column: str):
    frame = spark.sql(f"SELECT 1 AS k, {column}")
    with pytest.raises(InvalidColumn, match="backtick"):
        write(sink(tmp_path, format="orc"), frame)
    write(sink(tmp_path / "kept"), frame)
    assert told(read_files(spark, tmp_path / "kept" / "out").drop("batch")) == told(frame)


@pytest.mark.parametrize("layout", ["batches", "flat"])
def test_a_column_that_another_layout_has_a_folder_for_is_read(
    spark: SparkSession, tmp_path: Path, layout: str
):
    frame = spark.sql("SELECT 1 AS n, 7 AS _attempt")
    write(sink(tmp_path, layout=layout), frame)
    assert told(read_files(spark, tmp_path / "out").drop("batch")) == told(frame)


def test_a_session_that_tells_cases_apart_gets_the_same_guards(
    spark: SparkSession, tmp_path: Path
):
    spark.conf.set("spark.sql.caseSensitive", "true")
    try:
        for columns in ("X'00' AS Day, 1 AS n", "1 AS Day, 1 AS n"):
            made = sink(tmp_path, format="csv", partition_by="day")
            with pytest.raises(InvalidColumn, match="has the columns Day, day, and"):
                write(made, spark.sql(f"SELECT {columns}, 'a' AS day"))
        with pytest.raises(RowRefused, match="would be blank"):
            write(
                sink(tmp_path / "two", format="csv", options={"sep": "\t"}),
                spark.sql("SELECT CAST(NULL AS INT) AS a, CAST(NULL AS INT) AS A"),
            )
    finally:
        spark.conf.unset("spark.sql.caseSensitive")


def test_csv_takes_no_bytes(spark: SparkSession, tmp_path: Path):
    with pytest.raises(InvalidColumn, match="base64"):
        write(sink(tmp_path, format="csv"), spark.sql("SELECT 1 AS a, X'00' AS bytes"))


KEYS_OF_JSON = {
    "string": "'a\"b'",
    "tinyint": "-128Y",
    "bigint": "-9223372036854775808L",
    "decimal(38,18)": "CAST('-1e-18' AS DECIMAL(38, 18))",
    "decimal(5,2)": "CAST(1.50 AS DECIMAL(5, 2))",
    "float": "float('1.1')",
    "double": "double('-Infinity')",
    "boolean": "true",
}


def test_keys_of_maps_in_json_come_back_from_their_text(spark: SparkSession, tmp_path: Path):
    for number, (kind, key) in enumerate(KEYS_OF_JSON.items()):
        write(sink(at := tmp_path / str(number), format="json"), frame_with_key(spark, key))
        rows = spark.read.schema("s array<struct<m: map<string, int>>>").json(str(at / "out"))
        exact = f"CAST(map_keys(s[0].m)[0] AS {kind}) = {key} AS exact"
        assert rows.selectExpr(exact, "map_values(s[0].m)[0] AS n").collect() == [(True, 1)]


@pytest.mark.parametrize(
    "key",
    [
        "X'0102'",
        "array(1)",
        "named_struct('a', 1)",
        "date'2026-01-02'",
        "timestamp'2026-01-02 03:04:05'",
        "timestamp_ntz'2026-01-02 03:04:05'",
        "interval '1-2' year to month",
        "interval '1' day",
    ],
)
def test_keys_of_maps_that_json_would_destroy_are_refused(
    spark: SparkSession, tmp_path: Path, key: str
):
    """Spark's writer makes a number of a date, and a Java object's address of bytes."""
    frame = frame_with_key(spark, key)
    with pytest.raises(InvalidColumn, match=r"column s has a map with keys of type.*transform_ke"):
        write(sink(tmp_path, format="json"), frame)
    if "interval" not in key:
        write(sink(tmp_path / "kept"), frame)
        assert told(read_files(spark, tmp_path / "kept" / "out").select("s")) == told(frame)


def frame_with_key(spark: SparkSession, key: str) -> DataFrame:
    return spark.sql(f"SELECT array(named_struct('m', map({key}, 1))) AS s")
