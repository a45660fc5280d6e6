"""The dashboard in a real Chromium, beside a real ledger: no page breaks its own policy or axe's
rules, in light and dark and on a phone; what a record says is never run; and a commit appears by
itself. Needs Chromium (Debian: ``apt-get install chromium``).
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import axe_playwright_python
import pytest
from confluent_kafka import Producer

from onceward_testing import LocalKafka
from onceward_testing.free_ports import free_ports
from support.ledger_driver import Driver

# not minutes: it needs a browser, which continuous integration may not have
pytestmark = pytest.mark.slow

AXE = (Path(axe_playwright_python.__file__).parent / "axe.min.js").read_text()
EVIL = "<img src=x onerror=\"document.title='run'\"><script>document.title='run'</script>"
SCREENS = [("light", 1_200), ("dark", 1_200), ("light", 360)]


@pytest.fixture
def served(kafka: LocalKafka, driver: Driver) -> Iterator[tuple[str, subprocess.Popen[str]]]:
    (port,) = free_ports(1)
    process = subprocess.Popen(
        [sys.executable, "-m", "onceward", "dashboard", "--bootstrap-servers", driver.bootstrap,
         "--ledger-topic", driver.ledger_topic, "--port", str(port), "--interval", "0.5"],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}, stderr=subprocess.PIPE,
        text=True,
    )  # fmt: skip
    assert process.stderr is not None
    for line in process.stderr:
        if "running on" in line:
            break
    yield f"http://127.0.0.1:{port}", process
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=60)


@pytest.fixture
def chromium() -> Iterator[Any]:
    from playwright.sync_api import sync_playwright

    program = shutil.which("chromium") or shutil.which("google-chrome")
    assert program is not None, "install Chromium (Debian: apt-get install chromium)"
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=["--no-sandbox"])
        yield browser
        browser.close()


def complaints(page: Any) -> list[str]:
    """What axe has to say, and whether the page is wider than the screen."""
    session = page.context.new_cdp_session(page)
    # Not by a script of the page, which its policy forbids
    session.send("Runtime.evaluate", {"expression": AXE})
    found = page.evaluate(
        "async () => (await axe.run()).violations.map(v => v.id + ' ' + v.nodes[0].html)"
    )
    wider = page.evaluate("document.documentElement.scrollWidth > innerWidth")
    return [*found, *(["wider than the screen"] if wider else [])]


def test_pages_are_safe_and_usable_and_follow_the_ledger(
    driver: Driver, served: tuple[str, subprocess.Popen[str]], chromium: Any
) -> None:
    site, server = served
    producer = Producer({"bootstrap.servers": driver.bootstrap})
    producer.produce(driver.source, EVIL, key=EVIL, headers=[(EVIL, EVIL)], partition=0)
    for number in range(24):
        producer.produce(driver.source, str(number), partition=0)
    assert producer.flush(60) == 0
    target = driver.new()
    target.open(driver.running(0))
    driver.commit(target, 0)

    said: list[str] = []
    paths = [
        "/", *(f"/pipeline/{driver.name}?tab={tab}" for tab in (
            "batches", "lag", "transactions", "failures", "ledger")),
        f"/pipeline/{driver.name}/ledger/0", f"/messages?topic={driver.source}&offset=0",
    ]  # fmt: skip
    for scheme, width in SCREENS:
        context = chromium.new_context(
            color_scheme=scheme, viewport={"width": width, "height": 800}
        )
        page = context.new_page()
        page.on("console", lambda message: said.append(message.text))
        page.on("pageerror", lambda error: said.append(str(error)))
        for path in paths:
            page.goto(f"{site}{path}")
            if path.startswith("/messages"):
                page.get_by_text("onerror").first.wait_for(timeout=30_000)
                assert "run" not in page.title()
            else:
                page.get_by_text(driver.name).first.wait_for(timeout=30_000)
            assert complaints(page) == [], (scheme, width, path)
        context.close()
    assert said == []

    page = chromium.new_page()
    page.goto(f"{site}/")
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.className") == "skip"
    link = page.get_by_role("link", name=driver.name)
    link.wait_for(timeout=30_000)
    link.press("Enter")
    page.wait_for_url(re.compile(f"/pipeline/{driver.name}"))
    page.get_by_role("link", name="Ledger", exact=True).click()
    page.get_by_role("link", name="0", exact=True).wait_for(timeout=30_000)
    driver.commit(target, 1)
    page.get_by_role("link", name="1", exact=True).wait_for(timeout=30_000)

    server.send_signal(signal.SIGTERM)
    page.get_by_text("not live since").wait_for(timeout=30_000)
