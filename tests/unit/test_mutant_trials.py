"""What `make mutants` calls killed, survived and INVALID: a checker that is never wrong in the
mutant's favour.
"""

from __future__ import annotations

import json
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from mutants.mutant import ROOT, mutants

FOLDER = Path(__file__).resolve().parents[1] / "mutants"
(STALE,) = (mutant for mutant in mutants() if mutant.demanded == "stale sequences")
KILLER, FILE = STALE.tests["unit"][0], STALE.files[0]
FIRST, SECOND, *_ = (ROOT / FILE).read_text().splitlines()
HARMLESS = [
    "Breaks: Nothing: a blank is added to a docstring.",
    f"Unit: {KILLER}",
    f"--- a/{FILE}",
    f"+++ b/{FILE}",
    "@@ -1,2 +1,2 @@",
    f"-{FIRST}",
    f"+{FIRST} ",
    f" {SECOND}",
    "",
]


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(FOLDER))
    import run

    return run


def judged(
    run: ModuleType, folder: Path, lines: list[dict[str, Any]], status: int | None = 1
) -> Any:
    report, log = folder / "report.jsonl", folder / "log"
    usual = {
        "test": "t",
        "when": "call",
        "outcome": "passed",
        "hung": False,
        "invalid": False,
        "error": "",
    }
    report.write_text("".join(json.dumps({**usual, **line}) + "\n" for line in lines))
    log.write_text("what pytest said")
    return run._judged(report, status, log)


def test_a_failure_in_the_tests_own_body_kills(run: ModuleType, tmp_path: Path):
    trial = judged(run, tmp_path, [{"test": "first"}, {"test": "second", "outcome": "failed"}])
    assert (trial.killer, trial.hung, trial.passed) == ("second", False, 1)


def test_a_test_that_hangs_kills_and_says_so(run: ModuleType, tmp_path: Path):
    assert judged(run, tmp_path, [{"outcome": "failed", "hung": True}]).hung
    trial = judged(run, tmp_path, [{"when": "setup"}], status=None)
    assert (trial.killer, trial.hung) == ("t", True)


@pytest.mark.parametrize(
    "line",
    [{"when": "setup"}, {"when": "teardown"}, {"invalid": True}, {"error": "TypeError"}],
    ids=str,
)
def test_what_fails_around_a_test_or_never_happened_kills_nobody(
    run: ModuleType, tmp_path: Path, line: dict[str, Any]
):
    trial = judged(run, tmp_path, [{**line, "outcome": "failed"}])
    assert trial.killer is None
    assert trial.noise


def test_nothing_that_ran_kills_nobody(run: ModuleType, tmp_path: Path):
    assert judged(run, tmp_path, [], status=0).noise


@pytest.mark.parametrize("status", [2, 4, 70])
def test_a_run_that_could_not_be_is_no_verdict(run: ModuleType, tmp_path: Path, status: int):
    with pytest.raises(run.Invalid, match="what pytest said"):
        judged(run, tmp_path, [], status)


@pytest.mark.lengthy("ci")
def test_a_harmless_mutant_survives_and_a_patch_that_does_not_fit_is_invalid(
    run: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    patches = tmp_path / "patches"
    patches.mkdir()
    (patches / "harmless.patch").write_text("\n".join(HARMLESS))
    (patches / "misfit.patch").write_text("\n".join(HARMLESS).replace('-"""', '-"""Another: '))
    harmless, misfit = run.mutants(patches)
    workshop = run.Workshop(tmp_path / "work")
    workshop.control({"unit": [KILLER]})
    verdicts = [workshop.judge(mutant, ["unit"]) for mutant in (harmless, STALE, misfit)]
    assert [verdict.killed for verdict in verdicts] == [False, True, False]
    assert "misfit.patch" in verdicts[2].invalid
    assert run._summary(verdicts[:2], whole=False) == 1
    assert run._summary(verdicts[1:2], whole=False) == 0
    assert run._summary(verdicts[1:], whole=False) == 2
    assert "SURVIVED: harmless" in capsys.readouterr().out


def test_a_hang_without_the_mutant_is_no_verdict_on_it(run: ModuleType, tmp_path: Path):
    workshop: Any = SimpleNamespace(_base=tmp_path, _once=lambda *_: run.Trial("t", hung=True))
    mutant = SimpleNamespace(name="m")
    with pytest.raises(run.Invalid, match="without the mutant"):
        run.Workshop._confirm(workshop, mutant, run.Trial("t", hung=True), "broker")
    run.Workshop._confirm(workshop, mutant, run.Trial("t"), "broker")
