"""A proxy between Kafka's clients and brokers that loses, delays, holds, repeats and counts single
requests.

In the order of a request's way: ``frames`` (what it is), ``listener`` (one a broker),
``connection`` (the pumps), ``faults`` (what happens to it), ``held`` (what is kept back),
``counting``; ``kafka_proxy`` is what tests use. Tests only; runs in the test's process.
"""

from onceward_testing.proxy.counting import Mark, Passed
from onceward_testing.proxy.faults import ProxyFault
from onceward_testing.proxy.held import HeldRequest
from onceward_testing.proxy.kafka_proxy import KafkaProxy

__all__ = ["HeldRequest", "KafkaProxy", "Mark", "Passed", "ProxyFault"]
