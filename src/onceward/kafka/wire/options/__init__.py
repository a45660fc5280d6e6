"""The settings of our Kafka client, by Kafka's own names: checked, frozen, and secret where they
must be."""
