"""Draws ``one_batch.svg``, the README's picture of one micro-batch: ``python
docs/pictures/one_batch.py``.

Plain text in, plain text out: nothing but the standard library, and the same bytes every time,
which a test compares with the file that is checked in. Widths are guessed from the number of
letters, so look at the picture after a change.
"""

from __future__ import annotations

from pathlib import Path
from xml.sax.saxutils import escape

WIDTH, HEIGHT = 1000, 560

INK, GREY, PAPER, LINE = "#1f2933", "#5f6c7b", "#ffffff", "#c5ced8"
BLUE, PALE_BLUE = "#1d5fa8", "#e3eefa"
GREEN, PALE_GREEN = "#20744a", "#e2f3ea"
AMBER, PALE_AMBER = "#9a5b00", "#fdf1dc"

STYLE = (
    'text { font-family: "Helvetica Neue", Helvetica, Arial, "DejaVu Sans", sans-serif; }'
    ' .code { font-family: "SFMono-Regular", Menlo, Consolas, "DejaVu Sans Mono", monospace; }'
)


def text(
    x: float, y: float, words: str, *, size: int = 14, colour: str = INK, bold: bool = False,
    middle: bool = False,
    code: bool = False,
) -> str:  # fmt: skip
    """One line of text whose base line is at ``y``."""
    extra = (' font-weight="600"' if bold else "") + (' text-anchor="middle"' if middle else "")
    extra += ' class="code"' if code else ""
    return (
        f'<text x="{x:g}" y="{y:g}" font-size="{size}" '
        f'fill="{colour}"{extra}>{escape(words)}</text>'
    )


def box(
    x: float, y: float, width: float, height: float, *, fill: str = PAPER, stroke: str = LINE,
    corner: int = 8,
    thick: float = 1.5, dashed: bool = False,
) -> str:  # fmt: skip
    dash = ' stroke-dasharray="6 4"' if dashed else ""
    return (
        f'<rect x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" rx="{corner}" '
        f'fill="{fill}" '
        f'stroke="{stroke}" stroke-width="{thick:g}"{dash}/>'
    )


def arrow(x1: float, y1: float, x2: float, y2: float, colour: str = GREY) -> str:
    return (
        f'<line x1="{x1:g}" y1="{y1:g}" x2="{x2:g}" y2="{y2:g}" stroke="{colour}" '
        f'stroke-width="2" '
        f'marker-end="url(#head-{colour[1:]})"/>'
    )


def arrow_head(colour: str) -> str:
    return (
        f'<marker id="head-{colour[1:]}" viewBox="0 0 10 10" refX="9" refY="5" markerWidth="7" '
        f'markerHeight="7" '
        f'orient="auto"><path d="M0 0L10 5L0 10z" fill="{colour}"/></marker>'
    )


def records(x: float, y: float, count: int, taken: range, colour: str, pale: str) -> list[str]:
    """A partition as a row of records, of which those in ``taken`` belong to the batch."""
    return [
        box(x + 15 * number, y, 12, 16, corner=2, thick=1, fill=pale if number in taken else PAPER,
            stroke=colour if number in taken else LINE)
        for number in range(count)
    ]  # fmt: skip


def source() -> list[str]:
    parts = [
        text(30, 76, "Source topic", bold=True),
        text(30, 94, "people", colour=GREY, size=12, code=True),
    ]
    for partition in range(3):
        y = 112 + 34 * partition
        parts += records(30, y, 11, range(4, 9), BLUE, PALE_BLUE)
    parts += [
        text(30, 232, "The batch is a range of offsets,", size=12, colour=GREY),
        text(30, 248, "which Spark logs in the checkpoint", size=12, colour=GREY),
        text(30, 264, "before the batch runs.", size=12, colour=GREY),
    ]
    return parts


def tasks() -> list[str]:
    parts = [
        text(290, 76, "Spark executors", bold=True),
        text(290, 94, "write in parallel", colour=GREY, size=12),
    ]
    for task in range(3):
        y = 110 + 34 * task
        parts += [
            arrow(204, y + 10, 284, y + 10, BLUE),
            box(290, y - 4, 130, 28, fill=PALE_BLUE, stroke=BLUE),
            text(355, y + 15, f"task {task + 1}", middle=True, colour=BLUE),
            arrow(420, y + 10, 520, y + 10, BLUE),
        ]
    parts += [
        text(436, 102, "1  send", size=12, colour=BLUE, bold=True),
        text(290, 262, "Spark driver", bold=True),
        box(290, 274, 130, 66, fill=PALE_AMBER, stroke=AMBER),
        text(355, 300, "adds progress,", middle=True, colour=AMBER, size=13),
        text(355, 319, "then commits", middle=True, colour=AMBER, size=13),
        arrow(420, 290, 520, 256, AMBER),
        text(436, 257, "2  add", size=12, colour=AMBER, bold=True),
        arrow(420, 322, 520, 352, GREEN),
        text(430, 356, "3  commit", size=12, colour=GREEN, bold=True),
    ]
    return parts


def transaction() -> list[str]:
    parts = [
        box(505, 44, 470, 336, fill="#f7faf8", stroke=GREEN, thick=2.5, corner=12),
        text(525, 70, "One Kafka transaction", bold=True, colour=GREEN, size=16),
        text(752, 70, "under an epoch of its own", size=12, colour=GREY),
        box(525, 84, 430, 126),
        text(540, 104, "Output: records", bold=True, size=13),
        text(668, 104, "people-clean", size=12, colour=GREY, code=True),
    ]
    for partition in range(3):
        y = 116 + 30 * partition
        parts += records(540, y, 15, range(10, 15), BLUE, PALE_BLUE)
        parts += [
            box(540 + 15 * 15, y, 12, 16, corner=2, thick=1, fill=GREEN, stroke=GREEN),
            text(793, y + 13, "commit marker", size=12, colour=GREEN),
        ]
    parts += [
        box(525, 222, 209, 94, fill=PALE_AMBER, stroke=AMBER),
        text(540, 244, "Source offsets", bold=True, size=13),
        text(540, 264, "of consumer group", size=12, colour=GREY),
        text(540, 281, "people-etl", size=12, colour=GREY, code=True),
        text(540, 302, "shows the lag", size=12, colour=AMBER),
        box(746, 222, 209, 94, fill=PALE_AMBER, stroke=AMBER),
        text(761, 244, "Ledger record", bold=True, size=13),
        text(761, 264, "in topic onceward-ledger", size=12, colour=GREY),
        text(761, 281, "batch, offsets, checksums", size=12, colour=GREY),
        text(761, 302, "this batch is committed", size=12, colour=AMBER),
        box(525, 330, 430, 38, fill=GREEN, stroke=GREEN),
        text(
            740,
            354,
            "EndTxn(commit): all of it becomes visible",
            middle=True,
            colour=PAPER,
            bold=True,
        ),
    ]
    return parts


def crashes() -> list[str]:
    """The time line: what a crash means before and after the commit point."""
    y = 436
    return [
        text(30, y - 24, "What a crash does", bold=True),
        f'<line x1="30" y1="{y}" x2="736" y2="{y}" stroke="{AMBER}" stroke-width="4"/>',
        f'<line x1="744" y1="{y}" x2="965" y2="{y}" stroke="{GREEN}" stroke-width="4" '
        f'marker-end="url(#head-{GREEN[1:]})"/>',
        f'<circle cx="740" cy="{y}" r="9" fill="{GREEN}"/>',
        text(740, y - 18, "commit", middle=True, size=13, colour=GREEN, bold=True),
        box(30, y + 20, 690, 82, fill=PALE_AMBER, stroke=AMBER, dashed=True),
        text(
            48,
            y + 48,
            "Before the commit: the transaction is aborted, and nothing of it is visible.",
            size=14,
        ),
        text(
            48,
            y + 72,
            "The next start runs the same range of offsets again, under a new epoch.",
            size=14,
        ),
        text(
            48,
            y + 92,
            "A late write of the old epoch is refused by the brokers.",
            size=12,
            colour=GREY,
        ),
        box(735, y + 20, 240, 82, fill=PALE_GREEN, stroke=GREEN, dashed=True),
        text(753, y + 48, "After it: the ledger has the", size=14),
        text(753, y + 68, "batch, and the next start", size=14),
        text(753, y + 88, "does not send it again.", size=14),
    ]


def picture() -> str:
    """The whole file."""
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" '
        f'aria-labelledby="title">',
        '<title id="title">One micro-batch is one Kafka transaction: the executors send the '
        "output, the driver adds "
        "source offsets and a ledger record, and one commit makes all of it visible.</title>",
        f"<style>{STYLE}</style>",
        f"<defs>{''.join(arrow_head(colour) for colour in (BLUE, AMBER, GREEN, GREY))}</defs>",
        box(1, 1, WIDTH - 2, HEIGHT - 2, corner=14),
        text(30, 36, "One micro-batch", bold=True, size=18),
        *transaction(),
        *source(),
        *tasks(),
        *crashes(),
        "</svg>",
    ]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    Path(__file__).with_suffix(".svg").write_text(picture(), encoding="utf-8")
