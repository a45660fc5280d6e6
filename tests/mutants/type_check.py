"""Type check of the mutants: a patch that mypy refuses breaks Python, and says nothing about a
promise.

Called by ``run.py`` before any test. One tree and one cache serve all mutants: mypy looks again
only at the files that a patch changes and at the modules that import them, a few seconds each.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

from mutant import Mutant, PatchDoesNotApply


def type_errors(mutants: Iterable[Mutant], base: Path, folder: Path) -> dict[str, str]:
    """Return mypy's complaints by the name of the mutant; "" stands for the code as it is.

    :param base: has ``src`` and ``pyproject.toml``; it is not changed.
    :param folder: is made, and left with the sources as they are.
    """
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(base / "src", folder / "src", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(base / "pyproject.toml", folder)
    errors = {"": _mypy(folder)}
    for mutant in mutants if not errors[""] else ():
        errors[mutant.name] = _patched(mutant, base, folder)
        for name in mutant.files:
            shutil.copy(base / name, folder / name)
    return {name: text for name, text in errors.items() if text}


def _patched(mutant: Mutant, base: Path, folder: Path) -> str:
    try:
        mutant.apply(folder, base)
    except PatchDoesNotApply as error:
        return str(error)
    return _mypy(folder)


def _mypy(folder: Path) -> str:
    """Return the errors in ``src``; "" for none. That code cannot be reached is what many a mutant
    is about.
    """
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--no-warn-unreachable", "--no-error-summary",
        "--hide-error-context", "src"],
        cwd=folder, capture_output=True, text=True, check=False,
    )  # fmt: skip
    return "" if done.returncode == 0 else (done.stdout + done.stderr).strip()
