"""The user that a database's server runs as: we ourselves, or ``nobody`` where we are root, as
which servers refuse to run. Called by :mod:`local_postgres` and :mod:`local_mysql`.
"""

from __future__ import annotations

import os
import pwd
import signal
import sys
import tempfile
from pathlib import Path

# After the change of user the kernel no longer ends us with the guard, unless asked once more
# (prctl 1: PDEATHSIG).
_AS_ANOTHER_USER = """
import ctypes, os, sys
user, group = int(sys.argv[1]), int(sys.argv[2])
os.setgroups([]); os.setgid(group); os.setuid(user)
try:
    ctypes.CDLL(None).prctl(1, int(sys.argv[3]))
except (OSError, AttributeError):
    pass
os.chdir("/")
os.execv(sys.argv[4], sys.argv[4:])
"""


def as_user(command: list[str], dies_of: signal.Signals) -> list[str]:
    """``command``, as ``nobody`` where we are root.

    :param dies_of: what the kernel sends it when its guard is gone (Linux).
    """
    if os.geteuid() != 0:
        return command
    nobody = pwd.getpwnam("nobody")
    numbers = [str(number) for number in (nobody.pw_uid, nobody.pw_gid, int(dies_of))]
    return [sys.executable, "-I", "-S", "-c", _AS_ANOTHER_USER, *numbers, *command]


def folder_for_all() -> str | None:
    """Where a folder is within everybody's reach; None: wherever temporary folders are made."""
    if os.geteuid() != 0:
        return None
    wanted = Path(tempfile.gettempdir())
    return str(wanted) if is_reachable(wanted) else "/tmp"  # noqa: S108 — mkdtemp makes a folder of its own there


def is_reachable(folder: Path) -> bool:
    """May that user look into ``folder``?"""
    if os.geteuid() != 0:
        return True
    return all(parent.stat().st_mode & 0o005 == 0o005 for parent in (folder, *folder.parents))


def given_to_user(folder: Path) -> None:
    """``folder``, which is ours, becomes that user's."""
    if os.geteuid() == 0:
        nobody = pwd.getpwnam("nobody")
        os.chown(folder, nobody.pw_uid, nobody.pw_gid)
