"""Modes of Spark under which the promise cannot be kept. Called by
:mod:`onceward.spark.batch.query` for each run of a query.
"""

from __future__ import annotations

import re
from typing import Any

from onceward.errors import UnsupportedQuery

CHECKPOINTS = "spark.sql.streaming.checkpointLocation"
FILE_MANAGER = "spark.sql.streaming.checkpointFileManagerClass"
BY_FILE_SYSTEM = "FileSystemBasedCheckpointFileManager"
SOURCE_EVOLUTION = "spark.sql.streaming.queryEvolution.enableSourceEvolution"
_UUID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_PROMISE = "exactly-once output (one micro-batch = one transaction)"


def refuse_modes(session: Any, execution: Any) -> None:
    """Refuse a query of ``session`` under any of them. :raises UnsupportedQuery: it is."""
    # Not context.getConf(): it copies every setting through py4j, 25 ms for each batch.
    speculation = session.sparkContext._conf.get("spark.speculation", "false") or "false"
    refuse_unsupported(speculation, execution)
    refuse_source_evolution(str(session.conf.get(SOURCE_EVOLUTION, "false")))
    refuse_made_up_checkpoint(execution, str(session.conf.get(CHECKPOINTS, "")))
    refuse_renames_that_keep_a_file(
        str(session.conf.get(FILE_MANAGER, "")), str(execution.resolvedCheckpointRoot())
    )


def refuse_made_up_checkpoint(execution: Any, root: str) -> None:
    """Refuse a query that has no checkpoint location: Spark makes a folder that the next start
    does not find.

    ``ResolveWriteToStream``: without the option it is a temporary one
    (``deleteCheckpointOnStop``), or one of :data:`CHECKPOINTS`, by the query's name, or else by a
    UUID that is drawn at each start.

    :param root: the value of :data:`CHECKPOINTS`, empty unless it is set.
    """
    checkpoint = str(execution.resolvedCheckpointRoot())
    # One that has batches was found again
    drawn = (
        execution.name() is None
        and _is_drawn(checkpoint, root)
        and int(execution.lastExecution().currentBatchId()) == 0
    )
    if drawn or _is_temporary(execution):
        # Spark does not keep whether it was given
        given = ", or one that is named as Spark names those that it makes up" * drawn
        raise UnsupportedQuery(
            f"the query has no checkpoint location{given}: Spark keeps its progress in a folder "
            f"that it has made up ({checkpoint}), and no later start would find it",
            next_step='start it with writeStream.option("checkpointLocation", "…"), a folder of '
            "this query's own that outlasts the driver"
            + ", and whose name is no UUID; or give it a queryName"
            * drawn,
        )


def _is_drawn(checkpoint: str, root: str) -> bool:
    parent, _, name = checkpoint.rpartition("/")
    path = re.sub(r"^[\w+.-]+:(//[^/]*)?", "", root).strip("/")
    is_below = parent == root.rstrip("/") or (path != "" and f"/{parent}".endswith(f"/{path}"))
    return is_below and _UUID.fullmatch(name) is not None


def refuse_renames_that_keep_a_file(file_manager: str, checkpoint: str) -> None:
    """Refuse to write a checkpoint that is not on a local disk through Hadoop's ``FileSystem``.

    ``FileSystemBasedCheckpointFileManager.renameTempFile`` asks it to rename over a file that is
    there. A local file system does so. HDFS answers false, and Spark takes that for success: the
    state of an attempt that failed would stay, and be committed with the rows of the next one.

    :param file_manager: the value of :data:`FILE_MANAGER`, empty unless somebody chose one.
    :param checkpoint: the query's checkpoint location, as Spark has resolved it.
    """
    scheme, colon, _ = checkpoint.partition(":")
    if file_manager.endswith(BY_FILE_SYSTEM) and colon and scheme != "file":
        raise UnsupportedQuery(
            f"{FILE_MANAGER}={file_manager}, and the checkpoint is {checkpoint}: where that does "
            "not rename over a file that is there, as HDFS, Spark would keep the state of an "
            "attempt that failed and take it for that of the next one",
            next_step=f"remove {FILE_MANAGER} (ow.checkpointing(local_disk=True) sets it), or put "
            'the checkpoint on a local disk ("file:///…")',
        )


def _is_temporary(execution: Any) -> bool:
    kind = execution.getClass()
    while kind.getSimpleName() != "StreamExecution":
        kind = kind.getSuperclass()
    found = kind.getDeclaredField("deleteCheckpointOnStop")
    found.setAccessible(True)
    return bool(found.get(execution))


def refuse_unsupported(speculation: str, execution: Any) -> None:
    """Refuse the modes under which two writers could meet, or output and offsets could part.

    :param speculation: the value of ``spark.speculation``.
    :param execution: Spark's ``StreamExecution``.
    """
    if speculation.strip().lower() == "true":
        raise UnsupportedQuery(
            "spark.speculation=true: a speculative copy of a task would write records twice, "
            f"against {_PROMISE}",
            next_step="set spark.speculation=false",
        )
    kind = execution.getClass().getSimpleName()
    if "AsyncProgress" in kind:
        raise UnsupportedQuery(
            "asyncProgressTrackingEnabled=true: Spark would start a batch before the one before "
            f"it is logged, against {_PROMISE}",
            next_step="remove the option asyncProgressTrackingEnabled",
        )
    trigger = execution.trigger().getClass().getSimpleName()
    if "Continuous" in kind or "Continuous" in trigger or "RealTime" in trigger:
        raise UnsupportedQuery(
            f"trigger {trigger.rstrip('$')}: it has no micro-batch boundary to commit at, against "
            f"{_PROMISE}",
            next_step="use trigger(processingTime=…) or trigger(availableNow=True)",
        )


def refuse_source_evolution(setting: str) -> None:
    """Refuse named sources that may come and go (Spark 4.2 and later), by
    :data:`SOURCE_EVOLUTION`: the ledger knows sources by their place."""
    if setting.strip().lower() == "true":
        raise UnsupportedQuery(
            f"{SOURCE_EVOLUTION}=true: Spark may add, remove and reorder the sources of a "
            "checkpoint, and the ledger would compare the offsets of one with those of another",
            next_step=f"set {SOURCE_EVOLUTION}=false and start with a new checkpoint",
        )
