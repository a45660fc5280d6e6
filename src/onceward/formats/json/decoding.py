r"""``ow.json.decode``: texts of JSON become a column, by one ``from_json`` that reads a record,
and one verdict on what came out. Driver only; called by users where they define a query.

``from_json`` looks no further than an object's
end, and takes an array's first item for the object. So it reads the text between two of ours:
``{"<mark>": [`` text ``, {"<mark>": true}]}``. The list has two items, and the second is ours, if,
and only if, the text is one value of JSON: what goes on, is cut off, or closes the list itself is
no JSON any more, or leaves a list of other items. The mark is drawn anew for each plan, so that
nobody can write a record that holds it. Where a value does not fit its type, Spark notes it in
``columnNameOfCorruptRecord``, also deep inside; what it does not notice, :mod:`.types` does, and
texts are judged here: bytes that are no UTF-8, and halves of a character (``\ud800`` alone), of
which Java makes ``?``.
"""

from __future__ import annotations

import uuid
from typing import Literal, cast

from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812  as everybody writes it
from pyspark.sql.types import (
    ArrayType,
    BooleanType,
    DataType,
    StringType,
    StructField,
    StructType,
    VariantType,
)

from onceward.engine.decoding import TAG
from onceward.errors import ConfigurationError, UnsupportedSchema
from onceward.formats.json.types import JSON, Types, only_variants
from onceward.formats.validation import (
    DOES_NOT_FIT,
    ValidatingStep,
    conjunction,
    in_place,
    poison,
    refuse_frame,
    with_one,
)
from onceward.spark.batch.causes import is_verdict, thrown_by
from onceward.spark.types import column_named, contains_type

DECODED = "onceward_decoded"
_CHECKED = "onceward_checked"
_BAD = "bad"
STRICTLY = {
    # whatever cannot be read gives nulls and a note, and no error
    "mode": "PERMISSIVE",
    "columnNameOfCorruptRecord": _BAD,
    "allowComments": "false",
    "allowSingleQuotes": "false",
    "allowUnquotedFieldNames": "false",
    "allowNumericLeadingZeros": "false",
    "allowNonNumericNumbers": "false",
    "allowUnquotedControlChars": "false",
    "allowBackslashEscapingAnyCharacter": "false",
    # As long as a text of Java's can be: Jackson's own limit is 20,000,000 characters
    "maxStringLen": str(2**31 - 1),
}
_WHOLE_CHARACTERS = r"\\\\|\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}"
# A number that may be too large for a double: with an exponent of three digits, or of more digits
# than any double has. Looked for from a number's begin, so that a text of a million digits is read
# once.
_A_HUGE_NUMBER = r"\d\.?[eE]\+?0*+[1-9]\d\d|(?<![\d.])[\d.]{20,}+[eE]|(?<![\d.])\d{300}"
# A text with all its strings empty but keys: escapes that hide where a string ends go first. Each
# pattern reads a text once, and without a stack; `"~` begins what is not decided yet.
_ESCAPED_QUOTE, _STRING, _VALUE, _UNDECIDED = (
    r'\\["\\]',
    r'"([^"]*+)"',
    r'"~[^"]*+"(?!\s*+:)',
    r'"~',
)
_ESCAPE, _KEY = r"\\.", r'"[^"]*+":'
_HALF_A_CHARACTER = r"\\u[dD][89a-fA-F]"


class JsonPlan:
    """Fixed when it is made.

    :param tag: what the errors that it raises name.
    :param column: where the records are; binary. :param schema: what ``types.why_not`` has nothing
        against.
    :param types: how its fields are read.
    """

    def __init__(self, tag: str, column: str, schema: StructType, types: Types = JSON) -> None:
        self._types = types
        self._tag = tag
        self._column = column
        self._schema = schema
        self._value = column_named(column)
        self._text = self._value.cast("string")
        self._mark = f"onceward_{uuid.uuid4().hex}"
        self._items = F.col(f"{DECODED}.{self._mark}")
        self._record = F.get(self._items, F.lit(0))

    def good(self, rows: DataFrame) -> DataFrame:
        return self._with_value(rows, self._decode(rows).where(self._is_good()), self._record)

    def good_or_raise(self, rows: DataFrame) -> DataFrame:
        read = self._decode(rows)
        raising = F.raise_error(poison(self._tag, rows, F.lit(DOES_NOT_FIT), self._message()))
        checked = F.when(self._is_good(), self._record).otherwise(raising)
        return self._with_value(rows, with_one(read, checked, _CHECKED), F.col(_CHECKED))

    def bad(self, rows: DataFrame) -> DataFrame:
        return (
            self._decode(rows)
            .where(~self._is_good())
            .select(
                *(column_named(name) for name in rows.columns),
                F.lit(DOES_NOT_FIT).alias("error_class"),
                self._message().alias("error_message"),
            )
        )

    # below

    def _decode(self, rows: DataFrame) -> DataFrame:
        """Add :data:`DECODED`: the list of the record and our mark, and Spark's note on it."""
        record = self._types.read_as(self._schema)
        assert isinstance(record, StructType)  # noqa: S101 — it was one
        item = StructType([*record.fields, StructField(self._mark, BooleanType())])
        schema = StructType(
            [StructField(self._mark, ArrayType(item)), StructField(_BAD, StringType())]
        )
        begin, end = f'{{"{self._mark}":[', f',{{"{self._mark}":true}}]}}'
        text = F.concat(F.lit(begin), self._text, F.lit(end))
        return with_one(rows, F.from_json(text, schema, STRICTLY), DECODED)

    def _is_good(self) -> Column:
        """Return the verdict, never null. A null value is no record (a deletion, in Kafka), and
        passes.
        """
        conditions = [
            self._is_one_object(),
            self._has_whole_characters(),
            F.is_valid_utf8(self._text),
            *(condition for _, condition in self._fields()),
            *self._finite(),
            self._types.misfit(self._record).isNull(),
        ]
        return self._value.isNull() | F.coalesce(
            cast(Column, conjunction(conditions)), F.lit(False)
        )

    def _is_one_object(self) -> Column:
        ours = F.get(self._items, F.lit(1)).getField(self._mark)
        noted = F.col(f"{DECODED}.{_BAD}")
        return noted.isNull() & (F.size(self._items) == 2) & ours & self._record.isNotNull()

    def _has_whole_characters(self) -> Column:
        """Check escaped halves of characters, which need the other half. These expressions are
        slow, and hardly ever needed."""
        none = ~(F.contains(self._text, F.lit("\\ud")) | F.contains(self._text, F.lit("\\uD")))
        return none | ~F.regexp_replace(self._text, _WHOLE_CHARACTERS, " ").rlike(
            _HALF_A_CHARACTER
        )

    def _finite(self) -> list[Column]:
        """Check that numbers in VARIANTs are finite: one too large for a double is infinite.

        Written as JSON, it is a word: without quotes, and since Spark 4.1 within. So the text is
        read once more with no strings in it but keys.
        """
        if not contains_type(self._schema, VariantType):
            return []
        text = self._text
        for pattern, instead in (
            (_ESCAPED_QUOTE, ""),
            (_STRING, '"~$1"'),
            (_VALUE, '""'),
            (_UNDECIDED, '"'),
        ):
            text = F.regexp_replace(text, pattern, instead)
        variants = cast(StructType, only_variants(self._schema))
        read = F.to_json(F.from_json(text, variants, STRICTLY))
        values = F.regexp_replace(F.regexp_replace(read, _ESCAPE, ""), _KEY, "")
        return [
            ~self._text.rlike(_A_HUGE_NUMBER)
            | ~F.coalesce(F.contains(values, F.lit("Infinity")), F.lit(False))
        ]

    def _fields(self) -> list[tuple[str, Column]]:
        """Return the fields that may not fit though Spark noted nothing, and whether they do."""
        found = []
        for field in self._schema.fields:
            read = self._record.getField(field.name)
            fits = self._types.fits(read, field.dataType, field.nullable)
            if fits is not None:
                found.append((field.name, fits))
        return found

    def _with_value(self, rows: DataFrame, read: DataFrame, record: Column) -> DataFrame:
        """Return the columns of ``rows``, in their order, with the record in the place of its
        bytes."""
        value = F.when(
            record.isNotNull(), F.struct(*self._types.convert_fields(record, self._schema))
        ).alias(self._column)
        return read.select(*in_place(rows, self._column, value))

    def _message(self) -> Column:
        """Return why a record cannot be read, as far as can be told."""
        # Of objects with nothing that is looked at: no value in them is too large for its type
        nothing = ArrayType(StructType([StructField(self._mark, BooleanType())]))
        listed = F.from_json(F.concat(F.lit("["), self._text, F.lit("]")), nothing, STRICTLY)
        reason = (
            F.when(~F.is_valid_utf8(self._text), F.lit("it is not UTF-8"))
            .when(
                ~self._has_whole_characters(),
                F.lit("a text in it has half a character (\\ud800 to \\udfff alone)"),
            )
            .when(self._text.rlike(r"\A[ \t\r\n]*\z"), F.lit("it is empty"))
            .when(
                ~self._text.rlike(r"\A[ \t\r\n]*\{"),
                F.lit(
                    "it does not begin as an object of JSON does (one with a registry's id in "
                    "front, as Confluent's serializer writes it, is read from substring(value, 6))"
                ),
            )
            .when(
                F.coalesce(F.size(listed), F.lit(-1)) != 1,
                F.lit(
                    "it is no JSON, goes on behind the object, or is beyond the parser's limits"
                ),
            )
            .when(
                ~F.coalesce(self._is_one_object(), F.lit(False)),
                F.lit("a value is not of the schema's type"),
            )
        )
        for name, condition in self._fields():
            why = (
                f"field {name!r} is not what the schema says: missing, of another type, out of "
                f"range, or a key twice{self._types.hint(name)}"
            )
            reason = reason.when(~F.coalesce(condition, F.lit(False)), F.lit(why))
        for finite in self._finite():
            reason = reason.when(~finite, F.lit("a number in it is too large"))
        return reason.otherwise(self._types.misfit(self._record))


_UNFIT: dict[str, tuple[type[DataType], str]] = {
    "spark.sql.legacy.json.allowEmptyString.enabled": (
        DataType, "makes nulls of empty texts where a number is wanted",
    ),
    "spark.sql.variant.allowDuplicateKeys": (
        VariantType, "takes the last value of a name that is twice in a VARIANT's object",
    ),
}  # fmt: skip
"""Settings of a session by which records are read as others, and in which types."""


def decode(
    frame: DataFrame,
    *,
    schema: StructType | str,
    column: str = "value",
    on_error: Literal["stop", "dead_letter"] = "stop",
) -> DataFrame:
    """Decode ``column``, texts of JSON as bytes, to a struct of the fields of ``schema``.

    ::

        source = ow.kafka_source(spark, topic="people", …)
        schema = "name STRING NOT NULL, born DATE"
        people = ow.json.decode(source, schema=schema, on_error="dead_letter")
        people.select("key", "value.name", "value.born")

    A record that is not one object of JSON (RFC 8259) in UTF-8, or has a value that its field does
    not take, is *poison*: nothing becomes a null because it could not be read. A field that is
    missing is null, unless the schema says ``NOT NULL``; one that the schema does not have is left
    out. A null value, Kafka's deletion, stays: the row has a null there. The page on JSON has the
    whole table of what is taken.

    :param schema: BOOLEAN, SMALLINT, INT, BIGINT, FLOAT, DOUBLE, STRING, DATE, TIMESTAMP,
        TIMESTAMP_NTZ, VARIANT, and STRUCT, ARRAY and MAP (by STRING) of them; as a type, or as
        Spark's DDL.
    :param column: binary.
    :param on_error: what poison does. ``"stop"``: the batch fails with
        :class:`~onceward.errors.InvalidRecord`, which says where the record is. ``"dead_letter"``:
        it goes to ``KafkaSink(dead_letter_topic=…)`` in the batch's own transaction, and only the
        others are in the result. For streams, directly on the source's frame.

    :raises InvalidColumn: there is no such column, or it is not binary.
    :raises UnsupportedSchema: ``schema`` is none, or has a type that Spark would not read exactly.
    :raises UnsupportedQuery: dead letters of a frame that is no stream.
    """
    return decode_with(frame, parse_schema(schema), column, on_error)


def decode_with(
    frame: DataFrame, schema: StructType, column: str, on_error: str, types: Types = JSON
) -> DataFrame:
    """Decode with ``types``, for a schema whose fields are read in a way of their own.

    :raises OncewardError: as :func:`decode`.
    """
    refuse_frame(frame, column, on_error)
    if (why := types.why_not(schema)) is not None:
        raise UnsupportedSchema(
            f"JSON is not read by this schema: {why}",
            next_step="take another type for the field there",
        )
    refuse_settings(frame, schema)
    plan = JsonPlan(tag := TAG + uuid.uuid4().hex, column, schema, types)
    return ValidatingStep(tag, plan, sets_aside=on_error == "dead_letter").apply(frame)


def refuse_settings(frame: DataFrame, schema: StructType) -> None:
    """Check the session's settings.

    :raises ConfigurationError: by one of them values of ``schema`` are read as others.
    """
    for setting, (kind, what) in _UNFIT.items():
        is_on = str(frame.sparkSession.conf.get(setting, "false")).lower() == "true"
        if is_on and contains_type(schema, kind):
            raise ConfigurationError(
                f"{setting}=true {what}", next_step=f"set {setting} to false, its default"
            )


def parse_schema(schema: object, function: str = "json.decode(…)") -> StructType:
    """Parse a schema.

    :raises UnsupportedSchema: it is no struct, and no columns in DDL.
    """
    step = (
        "pass a StructType, or its columns as DDL (name STRING NOT NULL, born DATE), as schema= "
        f"of {function}"
    )
    if isinstance(schema, str):
        try:
            schema = DataType.fromDDL(schema)
        except Exception as error:
            # Of what Spark throws, PySpark knows some: not of collations, nor of a stack overflow
            if not isinstance(error, PySparkException) and not is_verdict(error):
                raise
            thrown = "" if isinstance(error, PySparkException) else str(thrown_by(error)[0])
            words = (thrown or str(error)).strip().split("\n")[0]
            raise UnsupportedSchema(
                f"schema={schema!r} is no DDL: {words}", next_step=step
            ) from error
    if not isinstance(schema, StructType):
        raise UnsupportedSchema(f"schema={schema!r} is no struct", next_step=step)
    return schema
