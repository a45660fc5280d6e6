"""MySQL's charsets: which one a collation's number means, and bytes to text exactly as the server
converts them. Pure.

The numbers are those of MySQL 8.0 and MariaDB 11.4 (``information_schema``). Where Python's codec
of a like name differs from the servers, the difference is here; it was found by converting every
character on both of them. A charset without a codec that agrees (``eucjpms``), an unknown
collation, and bytes that are no character of the charset are errors: nothing is replaced by a
question mark.
"""

from __future__ import annotations

import codecs
import functools
from collections.abc import Callable

from onceward.mysql.binlog.event import damaged_data

_UPPER = 128
_NO_CHARACTER = "\ufffe"
UTF8 = frozenset({"utf8mb4", "utf8mb3", "ascii"})
"""Bytes of these are UTF-8 as they are."""

_COLLATIONS = {
    "armscii8": "32 64 1056 1088",
    "ascii": "11 65 1035 1089",
    "big5": "1 84 1025 1108",
    "binary": "63",
    "cp1250": "26 34 44 66 99 1050 1090",
    "cp1251": "14 23 50-52 1074-1075",
    "cp1256": "57 67 1081 1091",
    "cp1257": "29 58-59 1082-1083",
    "cp850": "4 80 1028 1104",
    "cp852": "40 81 1064 1105",
    "cp866": "36 68 1060 1092",
    "cp932": "95-96 1119-1120",
    "dec8": "3 69 1027 1093",
    "eucjpms": "97-98 1121-1122",
    "euckr": "19 85 1043 1109",
    "gb18030": "248-250",
    "gb2312": "24 86 1048 1110",
    "gbk": "28 87 1052 1111",
    "geostd8": "92-93 1116-1117",
    "greek": "25 70 1049 1094",
    "hebrew": "16 71 1040 1095",
    "hp8": "6 72 1030 1096",
    "keybcs2": "37 73 1061 1097",
    "koi8r": "7 74 1031 1098",
    "koi8u": "22 75 1046 1099",
    "latin1": "5 8 15 31 47-49 94 1032 1071",
    "latin2": "2 9 21 27 77 1033 1101",
    "latin5": "30 78 1054 1102",
    "latin7": "20 41-42 79 1065 1103",
    "macce": "38 43 1062 1067",
    "macroman": "39 53 1063 1077",
    "sjis": "13 88 1037 1112",
    "swe7": "10 82 1034 1106",
    "tis620": "18 89 1042 1113",
    "ucs2": "35 90 128-151 159 640-642 1059 1114 1152 1174 2560-2727 2744-2759",
    "ujis": "12 91 1036 1115",
    "utf16": "54-55 101-124 672-674 1078-1079 1125 1147 2816-2983 3000-3015",
    "utf16le": "56 62 1080 1086",
    "utf32": "60-61 160-183 736-738 1084-1085 1184 1206 3072-3239 3256-3271",
    "utf8mb3": "33 76 83 192-215 223 576-578 1057 1107 1216 1238 2048-2215 2232-2247",
    "utf8mb4": "45-46 224-247 255-323 608-610 1069-1070 1248 1270 2304-2471 2488-2503",
}

_CODECS = {
    "utf8mb4": "utf-8", "utf8mb3": "utf-8", "ascii": "ascii", "binary": "ascii",
    "ucs2": "utf-16-be", "utf16": "utf-16-be", "utf16le": "utf-16-le", "utf32": "utf-32-be",
    "big5": "big5", "cp932": "cp932", "euckr": "cp949", "gb18030": "gb18030", "gb2312": "gb2312",
    "gbk": "gbk",
    "sjis": "shift_jis", "ujis": "euc_jp",
}  # fmt: skip
_SINGLE_BYTE_CODECS = {
    "cp1250": "cp1250", "cp1251": "cp1251", "cp1256": "cp1256", "cp1257": "cp1257",
    "cp850": "cp850", "cp852": "cp852",
    "cp866": "cp866", "greek": "iso8859_7", "hebrew": "iso8859_8", "hp8": "hp_roman8",
    "koi8r": "koi8_r",
    "koi8u": "koi8_u", "latin1": "cp1252", "latin2": "iso8859_2", "latin5": "iso8859_9",
    "latin7": "iso8859_13",
    "macce": "mac_latin2", "macroman": "mac_roman", "tis620": "tis_620", "swe7": "ascii",
    "dec8": "latin_1",
}  # fmt: skip
_DIFFERENCES = {
    "cp866": {0xFC: "ⁿ", 0xFD: "²"},
    "greek": {0xA1: "ʽ", 0xA2: "ʼ"},
    "hebrew": {0xAF: "‾"},
    "koi8u": {0x95: "•"},
    # What cp1252 leaves free is control characters.
    "latin1": {byte: chr(byte) for byte in (0x81, 0x8D, 0x8F, 0x90, 0x9D)},
    "swe7": dict(zip(b"@[\\]^`{|}~\x7f", "ÉÄÖÅÜéäöåü" + _NO_CHARACTER, strict=True)),
    "dec8": {
        **dict.fromkeys(b"\xa4\xa6\xac\xad\xae\xaf\xb4\xb8\xbe\xd0\xde\xf0\xfe\xff",
        _NO_CHARACTER),
        0xA8: "¤", 0xD7: "Œ", 0xDD: "Ÿ", 0xF7: "œ", 0xFD: "ÿ",
    },
}  # fmt: skip
# the upper half of those that Python has nothing like
_OWN = {
    "armscii8": "".join(map(chr, range(0x80, 0xA1)))
    + "\u2741§\u0589)(»«—.\u055d,-\u055f…\u055c\u055b\u055e"
    + "".join(chr(0x531 + n) + chr(0x561 + n) for n in range(38))
    + "’'",
    "geostd8": "€\ufffe‚\ufffe„…†‡\ufffe‰\ufffe‹"
    + _NO_CHARACTER * 5
    + "‘’“”•–—\ufffe\ufffe\ufffe›"
    + _NO_CHARACTER * 4
    + "".join(map(chr, range(0xA0, 0xC0)))
    + "აბგდევზჱთიკლმნჲოპჟრსტჳუფქღყშჩცძწჭხჴჯჰჵ"
    + _NO_CHARACTER * 23
    + "№"
    + _NO_CHARACTER * 2,
    "keybcs2": "ČüéďäĎŤčěĚĹÍľĺÄÁÉžŽôöÓůÚýÖÜŠĽÝŘťáíóúňŇŮÔšřŕŔ¼¡«»"
    + bytes(range(0xB0, 0xE0)).decode("cp437")
    + "αßΓπΣσ\u00b5τΦΘΩδ∞φε∩≡±≥≤⌠⌡÷≈°∙·√ⁿ²■\xa0",
}
_NOT_AS_PYTHON = {"big5": b"\xa2\xce"}
"""Two bytes that mean another character on the server, and that one alone has no way back."""
_GB18030_2000 = {0x1E3F: 0xE7C7, 0xE7C7: 0x1E3F}
"""The server has the standard of 2000, Python that of 2005, which exchanged these two."""


_CHARSETS = {
    number: name
    for name, ranges in _COLLATIONS.items()
    for first, _, last in (each.partition("-") for each in ranges.split())
    for number in range(int(first), int(last or first) + 1)
}


def charset_by_collation(collation: int) -> str:
    """Return the charset of a collation's number; ``"collation 4711"`` if it is not known."""
    return _CHARSETS.get(collation, f"collation {collation}")


@functools.cache
def single_byte_table(charset: str) -> str | None:
    """Return a character for each byte, U+FFFE for none; None for a multi-byte charset."""
    if charset in _OWN:
        return "".join(map(chr, range(_UPPER))) + _OWN[charset]
    if charset not in _SINGLE_BYTE_CODECS:
        return None
    codec, differences = _SINGLE_BYTE_CODECS[charset], _DIFFERENCES.get(charset, {})
    return "".join(
        differences.get(byte)
        or bytes([byte]).decode(codec, "replace").replace("\ufffd", _NO_CHARACTER)
        for byte in range(256)
    )


@functools.cache
def decoder_for(charset: str) -> Callable[[bytes], str] | None:
    """Return a function from bytes to text, which raises :class:`UnicodeDecodeError` for others;
    None if no codec agrees with the server.
    """
    table = single_byte_table(charset)
    if table is not None:
        return lambda data: codecs.charmap_decode(data, "strict", table)[0]
    codec = _CODECS.get(charset)
    if codec is None:
        return None
    if charset == "gb18030":
        return lambda data: data.decode(codec).translate(_GB18030_2000)
    refused = _NOT_AS_PYTHON.get(charset)
    if refused is None:
        return lambda data: data.decode(codec)

    def decode(data: bytes) -> str:
        if (at := data.find(refused)) >= 0:
            raise UnicodeDecodeError(
                codec, data, at, at + len(refused), "means another character on the server"
            )
        return data.decode(codec)

    return decode


def decode_name(data: bytes) -> str:
    """Decode the name of a database, table or column.

    :raises BinlogCorrupted: it is no UTF-8.
    """
    try:
        return data.decode()
    except UnicodeDecodeError:
        raise damaged_data(
            f"a table map has the name {data[:64]!r}, which is not utf8mb4"
        ) from None


def decode_label(data: bytes, charset: str) -> str:
    """Decode a label of an ENUM or SET; by a charset without a codec only ASCII.

    :raises UnicodeDecodeError: it is no text of the charset that can be read here.
    """
    decode = decoder_for(charset)
    return data.decode("ascii") if decode is None else decode(data)
