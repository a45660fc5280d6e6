"""One life of the demo's job, and the news that it tells. Runs in the supervisor's process."""

from __future__ import annotations

import queue
import sys
import threading
from collections.abc import Mapping
from pathlib import Path

from onceward.operate.job_process import JobProcess
from onceward_testing.demo.job_news import News, heard
from onceward_testing.demo.settings import JobSettings


class DemoJob(JobProcess):
    """The job as a process that prints its news. Its stdin is its lifeline:
    :mod:`onceward_testing.demo.lifeline`.
    """

    def __init__(self, settings: JobSettings, environment: Mapping[str, str], log: Path) -> None:
        command = [sys.executable, "-m", "onceward_testing.demo.job", settings.to_json()]
        super().__init__(
            command, folder=Path(settings.folder), log=log, environment=environment, piped=True
        )
        self._news: queue.SimpleQueue[News] = queue.SimpleQueue()
        threading.Thread(target=self._listen, name="job-news", daemon=True).start()

    def next_news(self, timeout_s: float) -> News | None:
        """What the job told next, None if nothing within ``timeout_s``."""
        try:
            return self._news.get(timeout=timeout_s)
        except queue.Empty:
            return None

    def _listen(self) -> None:
        with self.stdout as lines:
            for line in lines:
                news = heard(line)
                if news is not None:
                    self._news.put(news)
