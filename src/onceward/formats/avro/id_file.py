"""The schema ids that a query has met, in a file beside its checkpoint, or in the folder of
``onceward run``: for the next process, which has another memory. Driver only.

Called by :func:`onceward.formats.avro.decode`, which reads it, and by its step
(:mod:`onceward.formats.avro.step`), which writes it when a batch has met new ids. A plan is fixed
when the query is defined, before Spark knows the checkpoint: so the user says where it is.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os

from pyspark.sql import SparkSession

from onceward.errors import ConfigurationError
from onceward.formats.avro.memory import Registry, SchemaMemory, registry_place
from onceward.ids import RUN_FOLDER, PipelineId
from onceward.spark.batch.checkpoint_files import CheckpointFiles

log = logging.getLogger(__name__)

_FOLDER = PipelineId("@schema-ids")
"""Beside those of pipelines, whose ids have no @."""


_BESIDE = "in this process or in another one: what was found out is beside the checkpoint"
_IN_RUN = (
    "in this process or in the next one of this `onceward run`; for others to know what was found "
    "out, pass the query's checkpointLocation as checkpoint= of decode(…)"
)
_NOWHERE = (
    "in this process, which alone knows what was found out; for another process to know it, pass "
    "the query's checkpointLocation as checkpoint= of decode(…)"
)


def id_file(
    session: SparkSession, checkpoint: str | os.PathLike[str] | None, registry: Registry
) -> IdFile | None:
    """Return the file beside ``checkpoint``; without one, that of this ``onceward run``; or None.

    :raises ConfigurationError: ``checkpoint`` names no folder.
    """
    if checkpoint is not None:
        return IdFile(session, checkpoint, registry, _BESIDE)
    folder = os.environ.get(RUN_FOLDER, "")
    return IdFile(session, f"file://{folder}", registry, _IN_RUN) if folder else None


def who_knows(file: IdFile | None) -> str:
    """Return where a query may be started again, to know what was found out."""
    return _NOWHERE if file is None else file.who_knows


class IdFile:
    """The file of one registry.

    :param checkpoint: the query's ``checkpointLocation``, or another folder.
    """

    def __init__(
        self,
        session: SparkSession,
        checkpoint: str | os.PathLike[str],
        registry: Registry,
        who_knows: str,
    ) -> None:
        self.who_knows = who_knows
        path = os.fspath(checkpoint) if isinstance(checkpoint, (str, os.PathLike)) else ""
        if not isinstance(path, str) or not path.strip():
            raise ConfigurationError(
                f"checkpoint={checkpoint!r} names no folder",
                next_step="pass the query's checkpointLocation as checkpoint= of decode(…)",
            )
        self._files = CheckpointFiles(session, f"{path.rstrip('/')}/onceward/{_FOLDER}")
        where, context = registry_place(registry)
        # Two objects of the user's without an address are not told apart, and have one file: ids
        # that the other has are but asked for once more, and of a schema it would be a mistake.
        self._has_address = isinstance(where, str)
        place = f"{where if isinstance(where, str) else type(where).__qualname__} {context}"
        # As it is in the file, as far as is known
        self._text: str | None = None
        self._name = f"ids-{hashlib.sha256(place.encode()).hexdigest()[:16]}.json"

    def recall(self, memory: SchemaMemory) -> list[int]:
        """Tell ``memory`` which ids the registry did not have, and what the others were; return
        those that it had.

        :raises CheckpointUnreachable: it cannot be read.
        """
        text = self._text = self._files.read().get(self._name)
        if text is None:
            return []
        try:
            document = json.loads(text)
            ids, missing = (list(map(int, document[name])) for name in ("ids", "missing"))
            # A file of a version before has none
            fingerprints = {
                int(number): str(found)
                for number, found in document.get("fingerprints", {}).items()
            }
        except (ValueError, KeyError, TypeError, AttributeError):
            # Cut short by a crash: what is lost is learnt again.
            log.warning("the schema ids beside the checkpoint cannot be read: %r", text[:100])
            return []
        memory.recall(missing, fingerprints if self._has_address else {})
        return ids

    def write(self, memory: SchemaMemory) -> None:
        """Write what ``memory`` knows.

        :raises CheckpointUnreachable: it may not be there.
        """
        known = {
            "ids": sorted(memory.ids()),
            "missing": memory.missing_in_order(),
            "fingerprints": memory.fingerprints() if self._has_address else {},
        }
        text = json.dumps(known)
        if text != self._text:
            self._files.write(self._name, text)
            self._text = text
