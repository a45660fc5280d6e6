"""``onceward run``: keeps a job alive, as a child process, by a restart strategy. No Spark.

Registered in :mod:`onceward.cli`; what it does is in :mod:`onceward.operate.runner`.
"""

from __future__ import annotations

import logging
import os
import re
from enum import Enum
from pathlib import Path
from typing import Annotated, Any

from typer import Argument, Exit, Option

from onceward.engine.policy import seconds
from onceward.errors import ConfigurationError, ContradictoryOptions
from onceward.operate.restart import ExponentialDelay, FailureRate, FixedDelay, NoRestart
from onceward.operate.run_job import keep_status
from onceward.operate.runner import JobRunner


class Restart(str, Enum):
    """Restart strategies, by Flink's names (``restart-strategy.type``)."""

    EXPONENTIAL_DELAY = "exponential-delay"
    FIXED_DELAY = "fixed-delay"
    FAILURE_RATE = "failure-rate"
    NONE = "none"


# Flink's settings below restart-strategy.<name>., and their parameters; times end in _s.
_STRATEGIES: dict[Restart, tuple[Any, dict[str, str]]] = {
    Restart.EXPONENTIAL_DELAY: (
        ExponentialDelay,
        {
            "initial-backoff": "initial_s",
            "max-backoff": "max_s",
            "backoff-multiplier": "multiplier",
            "reset-backoff-threshold": "reset_after_s",
            "jitter-factor": "jitter",
            "attempts-before-reset-backoff": "attempts",
        },
    ),
    Restart.FIXED_DELAY: (FixedDelay, {"attempts": "attempts", "delay": "delay_s"}),
    Restart.FAILURE_RATE: (
        FailureRate,
        {
            "max-failures-per-interval": "max_failures",
            "failure-rate-interval": "interval_s",
            "delay": "delay_s",
        },
    ),
    Restart.NONE: (NoRestart, {}),
}

Text = str | None
Number = float | None
Count = int | None
_EXPONENTIAL, _FIXED, _RATE = "exponential-delay: ", "fixed-delay: ", "failure-rate: "


def run(
    job: Annotated[Path, Argument(help="The job's Python file.")],
    arguments: Annotated[list[str] | None, Argument(help="Its own arguments and options.")] = None,
    restart: Annotated[
        Restart, Option(help="When a job that failed is started again; Flink's strategies.")
    ] = Restart.EXPONENTIAL_DELAY,
    initial_backoff: Annotated[Text, Option(help=f"{_EXPONENTIAL}the first pause (1 s).")] = None,
    max_backoff: Annotated[Text, Option(help=f"{_EXPONENTIAL}the longest (1 min).")] = None,
    backoff_multiplier: Annotated[
        Number, Option(help=f"{_EXPONENTIAL}from one pause to the next (1.5).")
    ] = None,
    reset_backoff_threshold: Annotated[
        Text, Option(help=f"{_EXPONENTIAL}a run this long begins the pauses anew (1 h).")
    ] = None,
    jitter_factor: Annotated[
        Number, Option(help=f"{_EXPONENTIAL}part of a pause left to chance (0.1).")
    ] = None,
    attempts_before_reset_backoff: Annotated[
        Count, Option(help=f"{_EXPONENTIAL}restarts in a row (no limit).")
    ] = None,
    attempts: Annotated[Count, Option(help=f"{_FIXED}restarts in all (no limit).")] = None,
    delay: Annotated[Text, Option(help="fixed-delay, failure-rate: the pause (1 s).")] = None,
    max_failures_per_interval: Annotated[
        Count, Option(help=f"{_RATE}more of them end the job (1).")
    ] = None,
    failure_rate_interval: Annotated[
        Text, Option(help=f"{_RATE}in which they are counted (1 min).")
    ] = None,
    stop_timeout: Annotated[
        str, Option(help="A job that has not ended so long after the second signal is killed.")
    ] = "10 s",
) -> None:
    """Run a job, and start it again when it fails or its JVM or driver is gone.

    SIGTERM or Ctrl-C ends the job with the batch that is running, a second one at once. Exit
    status: 0 finished; 75, 1 or 128 + signal: it failed, and the restarts are used up; 78: it
    failed, and needs a change; 79: a newer copy has taken over; 64: wrong options. Options come
    before the job's file.
    """
    options = {name.replace("_", "-"): value for name, value in locals().items()}
    names = {name for _, settings in _STRATEGIES.values() for name in settings}
    strategy = restart_strategy(restart, {name: options[name] for name in names})
    if not os.path.isfile(job):
        raise ConfigurationError(f"{job} is no file", next_step="name the job's Python file")
    stop_timeout_s = seconds("--stop-timeout", stop_timeout)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    keep_status()
    command = [str(job), *(arguments or [])]
    raise Exit(JobRunner(command, strategy, stop_timeout_s=stop_timeout_s).run())


def restart_strategy(restart: Restart, arguments: dict[str, Any]) -> Any:
    """Return the strategy with its settings, by Flink's names; None: not given."""
    kind, settings = _STRATEGIES[restart]
    parameters = {}
    for name, value in arguments.items():
        if value is None:
            continue
        if name not in settings:
            theirs = [
                other.value for other, (_, options) in _STRATEGIES.items() if name in options
            ]
            raise ContradictoryOptions(
                f"--{name} is no setting of --restart {restart.value}",
                next_step=f"leave it out, or choose --restart {' or '.join(theirs)}",
            )
        is_time = settings[name].endswith("_s")
        parameters[settings[name]] = seconds(f"--{name}", value) if is_time else value
    try:
        return kind(**parameters)
    except ConfigurationError as error:
        # In the words of the code that is called; here they are options
        for name, parameter in settings.items():
            of_code = re.compile(rf"\b{parameter}\b")
            error.message = of_code.sub(f"--{name}", error.message)
            error.next_step = of_code.sub(f"--{name}", error.next_step)
        error.next_step = error.next_step.replace(", or None", ", or leave it out")
        raise
