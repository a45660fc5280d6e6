"""Words about topics, groups and the cluster."""

from __future__ import annotations

from collections.abc import Sequence

from kafka.protocol.admin import CreateTopicsRequest, DescribeConfigsRequest
from kafka.protocol.consumer import OffsetFetchRequest
from kafka.protocol.metadata import ApiVersionsRequest, MetadataRequest

from simulation.model_check.asking import Asking, Fact


class ClusterWords(Asking):
    """Of each what is asked; of the answer what can be compared."""

    def create(self, name: str, partitions: int = 1, replicas: int = -1, **settings: str) -> None:
        configs = [
            CreateTopicsRequest.CreatableTopic.CreatableTopicConfig(
                name=key.replace("_", "."), value=value
            )
            for key, value in settings.items()
        ]
        topic = CreateTopicsRequest.CreatableTopic(
            name=name if name.startswith("!") else self.real(name),
            num_partitions=partitions,
            replication_factor=replicas,
            assignments=[],
            configs=configs,
        )
        request = CreateTopicsRequest(
            topics=[topic], timeout_ms=30_000, validate_only=False, min_version=4
        )
        answer = self._ask(request, ("any", None), lambda a: [t.error_code for t in a.topics])
        self.say("create", name, answer.topics[0].error_code)

    def topic_config(self, name: str, *keys: str) -> None:
        resource = DescribeConfigsRequest.DescribeConfigsResource(
            resource_type=2, resource_name=self.real(name), configuration_keys=None
        )
        request = DescribeConfigsRequest(resources=[resource], min_version=1)
        answer = self._ask(request, ("any", None), lambda a: [0], set())
        found = answer.results[0]
        known = {config.name: config.value for config in found.configs}
        self.say("config", name, found.error_code, [known.get(key) for key in keys])

    def metadata(self, name: str) -> None:
        topic = MetadataRequest.MetadataRequestTopic(
            name=name if name.startswith("!") else self.real(name)
        )
        request = MetadataRequest(
            topics=[topic],
            allow_auto_topic_creation=False,
            include_cluster_authorized_operations=False,
            include_topic_authorized_operations=False,
            min_version=4,
            max_version=12,
        )
        answer = self._ask(request, ("any", None), lambda a: [0], set())
        found = answer.topics[0]
        partitions = [
            [p.partition_index, p.leader_id >= 0, len(p.replica_nodes), len(p.isr_nodes)]
            for p in sorted(found.partitions, key=lambda p: p.partition_index)
        ]
        self.say("metadata", name, found.error_code, partitions)

    def transaction_version(self) -> None:
        request = ApiVersionsRequest(
            client_software_name="t", client_software_version="1", min_version=0
        )
        answer = self._ask(request, ("any", None), lambda a: [a.error_code])
        levels = {
            feature.name: feature.max_version_level for feature in answer.finalized_features or ()
        }
        end_txn = {key.api_key: key.max_version for key in answer.api_keys}[26]
        self.say("transaction.version", levels.get("transaction.version", 0), min(end_txn, 5))

    def group(
        self, name: str, *, stable: bool = True, topics: Sequence[tuple[str, int]] | None = None
    ) -> None:
        """``OffsetFetch``: all offsets of a group, or those that are named."""
        group = self.real(name)
        kind = OffsetFetchRequest.OffsetFetchRequestGroup
        named = None
        if topics is not None:
            named = [
                kind.OffsetFetchRequestTopics(name=self.real(topic), partition_indexes=[partition])
                for topic, partition in topics
            ]
        request = OffsetFetchRequest(
            group_id=group,
            topics=None,
            groups=[kind(group_id=group, topics=named)],
            require_stable=stable,
            min_version=8,
            max_version=8,
        )
        answer = self._ask(request, ("group", group), lambda a: [a.groups[0].error_code])
        found = sorted(
            [
                t.name.removeprefix(self._prefix),
                p.partition_index,
                p.committed_offset,
                p.metadata or "",
                p.error_code,
            ]
            for t in answer.groups[0].topics
            for p in t.partitions
        )
        self.say("group", name, answer.groups[0].error_code, found)

    def group_settled(self, name: str) -> None:
        """Wait until the group's offsets are what they will be: 3.9.1 takes them some time after
        the marker (``GroupCoordinator.scheduleHandleTxnCompletion``).
        """
        before: Fact = []
        for _ in range(200):
            self.group(name)
            now = self.facts.pop()
            if now == before and all(each[4] == 0 for each in now[3]):
                return
            before = now
            self.side.pause(300)
