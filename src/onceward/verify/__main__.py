"""``python -m onceward.verify``: the checker with nothing but the standard library between it and its options."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from onceward.verify.command import run
from onceward.verify.findings import STATUS_HELP, USAGE

if TYPE_CHECKING:
    from onceward.verify.checker import Question


class _Parser(argparse.ArgumentParser):
    """Its own status for usage errors, 2, is that of a verdict here."""

    def error(self, message: str) -> NoReturn:
        self.print_usage(sys.stderr)
        self.exit(USAGE, f"{self.prog}: error: {message}\n")


def main() -> int:
    parser = _Parser(
        prog="python -m onceward.verify",
        description="Recompute from the logs what a pipeline's batches are told to have written, and judge.",
        epilog=STATUS_HELP,
    )
    parser.add_argument("--bootstrap-servers", required=True, metavar="HOST:PORT,…")
    parser.add_argument("--pipeline-id", required=True)
    parser.add_argument("--ledger-topic", default="onceward-ledger")
    parser.add_argument("--topic", action="append", default=[], help="output topic; default: those in the manifests")
    parser.add_argument("--command-config", type=Path, metavar="FILE", help="client settings, for secured clusters")
    parser.add_argument("--expect-caught-up", action="store_true", help="lag and open transactions are anomalies")
    parser.add_argument("--shared-topic", action="store_true", help="others write to the output topics, too")
    parser.add_argument("--what-is-left", action="store_true", help="do not ask for what compaction and retention took")
    parser.add_argument("--since", metavar="BATCH", help="begin there: 12, sequence:40, or a time such as …T06:00Z")
    parser.add_argument(
        "--conserves", choices=["exactly", "at-most", "at-least"], help="how many output records name each input record"
    )
    parser.add_argument(
        "--each-topic", action="store_true", help="with --conserves: so for each output topic by itself"
    )
    parser.add_argument("--lineage-headers", metavar="SPEC", help="topic=NAME,partition=NAME,offset=NAME")
    parser.add_argument("--lineage-json", metavar="SPEC", help="the same, as fields of a JSON value")
    parser.add_argument("--log-dirs", type=Path, action="append", nargs="+", default=[], metavar="DIR")
    parser.add_argument("--settle", type=float, default=15, metavar="SECONDS", help="for transactions to end")
    parser.add_argument("--patience", type=float, default=60, metavar="SECONDS", help="for an answer of a broker")
    parser.add_argument("--verbose", action="store_true", help="librdkafka's own log on standard error")
    parser.add_argument("--output", choices=["text", "json"], default="text")
    options = parser.parse_args()
    return run(lambda: _question(options), options.output)


def _question(options: argparse.Namespace) -> Question:
    from onceward.verify.checker import Question
    from onceward.verify.client_settings import settings_from_file
    from onceward.verify.options import conserves_of
    from onceward.verify.since import since_of

    return Question(
        bootstrap_servers=options.bootstrap_servers,
        pipeline_id=options.pipeline_id,
        ledger_topic=options.ledger_topic,
        topics=tuple(options.topic),
        client=settings_from_file(options.command_config) if options.command_config else {},
        expect_caught_up=options.expect_caught_up,
        shared_topic=options.shared_topic,
        what_is_left=options.what_is_left,
        log_dirs=tuple(folder for folders in options.log_dirs for folder in folders),
        since=None if options.since is None else since_of(options.since),
        conserves=conserves_of(
            options.conserves, options.lineage_headers, options.lineage_json, each_topic=options.each_topic
        ),
        settle_s=options.settle,
        patience_s=options.patience,
        verbose=options.verbose,
    )


if __name__ == "__main__":
    sys.exit(main())
