"""What prepared transactions are called. Pure; executors, and the driver.

``<pipeline>@<mark>-<owner>.<number>-<frame>-<partition>.<task attempt>``, and behind it, where the
server tells a transaction its number, ``.x<that>``: no two task attempts share a name, for an
attempt at a batch has one that no other of its chain has. No pipeline's id has an ``@``, so that
all of a pipeline begin alike and nobody else's do. The mark tells chains apart: what another
ledger's pipeline of the same id has prepared is not ours to drop. Servers take names of some
length only, so that a pipeline's id that is too long for that is refused when the sink is built.
"""

from __future__ import annotations

from onceward.engine.task_writer import Task
from onceward.ids import AttemptId, PipelineId, chain_prefix


def pipeline_prefix(pipeline: PipelineId) -> str:
    """Return the prefix of all transaction names of a pipeline."""
    return f"{pipeline}@"


def attempt_prefix(pipeline: PipelineId, mark: str, attempt: AttemptId) -> str:
    """Return the prefix of all transaction names of a batch attempt."""
    owner, number = attempt
    return f"{chain_prefix(pipeline, mark)}{owner}.{number}-"


def owner_in(name: str, pipeline: PipelineId, mark: str) -> int | None:
    """Return the owner whose batch attempt prepared a transaction of this chain; None for another
    chain's, or an unknown name.
    """
    beginning = chain_prefix(pipeline, mark)
    owner = name[len(beginning) :].partition(".")[0]
    return int(owner) if name.startswith(beginning) and owner.isdecimal() else None


def transaction_name(task: Task, mark: str) -> str:
    """Return the name of a task attempt's transaction."""
    beginning = attempt_prefix(task.pipeline, mark, task.attempt)
    return f"{beginning}{task.frame}-{task.partition_id}.{task.task_attempt_id}"


def with_number(name: str, number: int) -> str:
    """Add the number of the transaction, which the server stores with each row."""
    return f"{name}.x{number}"
