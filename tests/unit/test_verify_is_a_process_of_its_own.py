"""The checker loads nothing of what it judges, and says what it lacks."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

ARGUMENTS = ["--bootstrap-servers", "127.0.0.1:1", "--pipeline-id", "p", "--output", "json"]


def python(code: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code, *arguments], capture_output=True, text=True, check=False
    )


def test_the_process_holds_no_module_of_the_product():
    done = python(
        "import sys, onceward_verify.__main__, onceward_verify.topics, "
        "onceward_verify.client_settings\n"
        "print(*sorted({name.split('.')[0] for name in sys.modules}))"
    )
    loaded = set(done.stdout.split())
    assert "onceward_verify" in loaded, done.stderr
    assert loaded & {"onceward", "onceward_testing", "kafka", "pyspark"} == set()


@pytest.mark.parametrize("start", ["onceward_verify", "the command"])
def test_without_librdkafka_it_names_the_extra_to_install(start: str):
    run = (
        "import runpy; runpy.run_module('onceward_verify', run_name='__main__')"
        if start == "onceward_verify"
        else "sys.argv.insert(1, 'verify'); from onceward.cli import app; app()"
    )
    done = python(f"import sys; sys.modules['confluent_kafka'] = None; {run}", *ARGUMENTS)
    assert done.returncode == 69, done.stderr
    assert 'pip install "onceward[demo]"' in done.stderr
    assert json.loads(done.stdout)["verdict"] == "inconclusive"


def test_a_setting_that_librdkafka_does_not_know_is_named(tmp_path):
    (tmp_path / "client.properties").write_text("sasl.no.such.setting=1\n")
    arguments = [*ARGUMENTS, "--command-config", str(tmp_path / "client.properties")]
    done = subprocess.run(
        [sys.executable, "-m", "onceward_verify", *arguments],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 64, done.stderr
    assert "sasl.no.such.setting" in done.stderr
    assert "Traceback" not in done.stderr
