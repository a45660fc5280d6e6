"""The error of a demo run that proves nothing."""

from __future__ import annotations

from onceward.errors import OncewardError


class DemoInvalid(OncewardError):
    """The run did not go as planned (a planned kill never happened, the job ended by itself, time
    ran out): whatever its output looks like, it is no proof.
    """
