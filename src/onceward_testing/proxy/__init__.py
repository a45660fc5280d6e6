"""A proxy before Kafka's brokers that loses, delays, holds, repeats and counts single requests.

In the order of a request's way: ``frames`` (bytes to requests, and their counts), ``listener``
(one a broker), ``connection`` (the pumps), ``faults`` (what happens to a request, and those held);
``kafka_proxy`` is what tests use. Tests only; runs in the test's process.
"""

from onceward_testing.proxy.faults import HeldRequest, ProxyFault
from onceward_testing.proxy.frames import Mark, PassedRequests
from onceward_testing.proxy.kafka_proxy import KafkaProxy

__all__ = ["HeldRequest", "KafkaProxy", "Mark", "PassedRequests", "ProxyFault"]
