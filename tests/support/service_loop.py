"""A service manager that obeys what a systemd unit says of restarts, and nothing else; a program
of its own.

``python service_loop.py UNIT STATUSES``: runs ``ExecStart`` of the unit in the foreground, again
as ``Restart``, ``RestartSec`` and ``RestartPreventExitStatus`` say (systemd.service(5)), and writes
each exit status to a line of STATUSES. SIGTERM is passed on to the main process, as with
``KillMode=mixed``, and is the end.
"""

from __future__ import annotations

import configparser
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

# "Clean" endings, after which Restart=on-failure does nothing
CLEAN = {0, -signal.SIGHUP, -signal.SIGINT, -signal.SIGTERM, -signal.SIGPIPE}


def service(unit: str) -> configparser.SectionProxy:
    """The section [Service] of a unit's text."""
    parser = configparser.ConfigParser(strict=False, interpolation=None)
    parser.optionxform = str  # type: ignore[assignment,method-assign]  # systemd minds the case
    parser.read_string(unit)
    return parser["Service"]


def is_started_again(settings: configparser.SectionProxy, status: int) -> bool:
    """What systemd does after the main process has ended; of ``Restart`` the values that the page
    uses.
    """
    assert settings["Restart"] == "on-failure"
    prevented = settings.get("RestartPreventExitStatus", "").split()
    names = {str(status), signal.Signals(-status).name if status < 0 else ""}
    return status not in CLEAN and not names & set(prevented)


def main(unit: Path, statuses: Path) -> None:
    settings = service(unit.read_text())
    stopped: list[int] = []
    while True:
        process = subprocess.Popen(shlex.split(settings["ExecStart"]))

        def stop(number: int, _frame: object, process: subprocess.Popen[bytes] = process) -> None:
            stopped.append(number)
            process.send_signal(number)

        signal.signal(signal.SIGTERM, stop)
        status = process.wait()
        with statuses.open("a") as file:
            file.write(f"{status}\n")
        if stopped or not is_started_again(settings, status):
            return
        time.sleep(float(settings["RestartSec"]))


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
