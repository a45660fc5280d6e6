"""``python -m onceward_verify``: the checker with nothing but the standard library between it and
its options.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import NoReturn

from onceward_verify.command import run
from onceward_verify.findings import STATUS_HELP, USAGE
from onceward_verify.options import answer


class _Parser(argparse.ArgumentParser):
    """Its own status for usage errors, 2, is that of a verdict here."""

    def error(self, message: str) -> NoReturn:
        self.print_usage(sys.stderr)
        self.exit(USAGE, f"{self.prog}: error: {message}\n")


def main() -> int:
    parser = _Parser(
        prog="python -m onceward_verify",
        description="Recompute from the logs what a pipeline's batches are told to have written, "
        "and judge.",
        epilog=STATUS_HELP,
    )
    parser.add_argument(
        "--bootstrap-servers",
        metavar="HOST:PORT,…",
        help="of the output's topics, or of the sources",
    )
    parser.add_argument(
        "--database-url",
        metavar="URL",
        help="of the output's tables: postgresql://…, mysql://…, mariadb://…",
    )
    parser.add_argument(
        "--files", metavar="PATH", help="of the output's files: a folder, or s3://bucket/path"
    )
    parser.add_argument(
        "--ledger-folder", type=Path, metavar="DIR", help="where they have a ledger elsewhere"
    )
    parser.add_argument("--pipeline-id", required=True)
    parser.add_argument("--ledger-topic", default="onceward-ledger")
    parser.add_argument("--ledger-table", default="onceward_ledger")
    parser.add_argument(
        "--topic",
        action="append",
        default=[],
        help="output topic; default: those in the manifests",
    )
    parser.add_argument(
        "--command-config", type=Path, metavar="FILE", help="client settings, for secured clusters"
    )
    parser.add_argument(
        "--expect-caught-up", action="store_true", help="lag and open transactions are anomalies"
    )
    parser.add_argument(
        "--shared-topic",
        "--shared-table",
        action="store_true",
        dest="shared",
        help="others write to the output, too",
    )
    parser.add_argument(
        "--what-is-left",
        action="store_true",
        help="do not ask for what compaction and retention took",
    )
    parser.add_argument(
        "--since", metavar="BATCH", help="begin there: 12, sequence:40, or a time such as …T06:00Z"
    )
    parser.add_argument(
        "--conserves",
        choices=["exactly", "at-most", "at-least"],
        help="how many output records name each input record",
    )
    parser.add_argument(
        "--each-topic",
        action="store_true",
        help="with --conserves: so for each output topic by itself",
    )
    parser.add_argument(
        "--lineage-headers", metavar="SPEC", help="topic=NAME,partition=NAME,offset=NAME"
    )
    parser.add_argument(
        "--lineage-json", metavar="SPEC", help="the same, as fields of a JSON value"
    )
    parser.add_argument(
        "--log-dirs", type=Path, action="append", nargs="+", default=[], metavar="DIR"
    )
    parser.add_argument(
        "--settle",
        dest="settle_s",
        type=float,
        default=15,
        metavar="SECONDS",
        help="for transactions to end",
    )
    parser.add_argument(
        "--patience",
        dest="patience_s",
        type=float,
        default=60,
        metavar="SECONDS",
        help="for an answer of a broker",
    )
    parser.add_argument(
        "--verbose", action="store_true", help="librdkafka's own log on standard error"
    )
    parser.add_argument("--output", choices=["text", "json"], default="text")
    options = vars(parser.parse_args())
    output = options.pop("output")
    options["log_dirs"] = [folder for folders in options["log_dirs"] for folder in folders]
    return run(lambda: answer(**options), output)


if __name__ == "__main__":
    sys.exit(main())
