"""Answers that the model does not come to by itself, at the odds of the story; see ``faults``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from simulation.world.kafka.around import Surroundings
from simulation.world.kafka.faults import ANSWERS, kind


class FaultyAnswers:
    """Asks at each request whether one of the codes that are on is its answer."""

    def __init__(self, around: Surroundings) -> None:
        self._around = around
        self._on = {
            api: [
                (code, kind(api, code), done)
                for code, (done, _) in codes.items()
                if around.is_on(kind(api, code))
            ]
            for api, codes in ANSWERS.items()
        }
        self.any = any(self._on.values())

    def befall(
        self,
        cluster: Any,
        api: str,
        broker: Any,
        version: int,
        request: Any,
        reply: Callable[[Any], None],
    ) -> Callable[[Any], None] | None:
        """What is to be called with the true answer; None: it was answered."""
        for code, fault, done in self._on.get(api, ()):
            if self._around.fires(fault):
                if done:
                    return lambda answer: reply(
                        None if answer is None else _with(api, answer, code)
                    )
                reply(_refusal(api, version, request, code))
                return None
        return reply


def _with(api: str, answer: Any, code: int) -> Any:
    """The answer to a request that was carried out, with an error in it."""
    if api == "Produce":
        for topic in answer.responses:
            for partition in topic.partition_responses:
                if partition.error_code == 0:
                    partition.error_code, partition.base_offset = code, -1
    elif api == "CreateTopics":
        for topic in answer.topics:
            topic.error_code = topic.error_code or code
    return answer


def _refusal(api: str, version: int, request: Any, code: int) -> Any:
    from simulation.world.kafka import refusals

    return refusals.refusal(api, version, request, code)
