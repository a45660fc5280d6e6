import java.io.File;
import java.time.Duration;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.concurrent.atomic.AtomicReference;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.ListConsumerGroupOffsetsOptions;
import org.apache.kafka.clients.admin.OffsetSpec;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.Serdes;
import org.apache.kafka.streams.KafkaStreams;
import org.apache.kafka.streams.StreamsBuilder;
import org.apache.kafka.streams.errors.StreamsUncaughtExceptionHandler.StreamThreadExceptionResponse;
import org.apache.kafka.streams.kstream.Consumed;
import org.apache.kafka.streams.kstream.Produced;

/**
 * Kafka Streams with {@code exactly_once_v2} and two threads. Arguments: milliseconds between commits,
 * a folder for its state.
 */
final class StreamsPeer extends Peer {

    private static final Duration PATIENCE = Duration.ofSeconds(30);
    private static final long LOOK_MS = 50;

    private final String commitMs;
    private final String folder;
    private final AtomicReference<Throwable> failed = new AtomicReference<>();
    private KafkaStreams running;

    private StreamsPeer(String commitMs, String folder) {
        this.commitMs = commitMs;
        this.folder = folder;
    }

    public static void main(String[] arguments) throws Exception {
        new StreamsPeer(arguments[0], arguments[1]).serve();
    }

    @Override
    void copy(Copy order) throws Exception {
        try (Admin admin = Admin.create(Map.of("bootstrap.servers", order.bootstrapServers()))) {
            Map<TopicPartition, Long> ends = ends(admin, order.source());
            start(order);
            // They are committed together with the output, whose own ends count markers, too
            while (!reached(ends, committed(admin, order.output()))) {
                if (failed.get() != null) throw new IllegalStateException(failed.get());
                Thread.sleep(LOOK_MS);
            }
        }
        stop();
    }

    @Override
    void start(Copy order) {
        Properties settings = new Properties();
        settings.setProperty("application.id", order.output());
        settings.setProperty("bootstrap.servers", order.bootstrapServers());
        settings.setProperty("processing.guarantee", "exactly_once_v2");
        settings.setProperty("commit.interval.ms", commitMs);
        settings.setProperty("num.stream.threads", "2");
        settings.setProperty("auto.offset.reset", "earliest");
        settings.setProperty("producer.compression.type", order.compression());
        settings.setProperty("state.dir", new File(folder, "state").getPath());
        StreamsBuilder topology = new StreamsBuilder();
        topology.stream(order.source(), Consumed.with(Serdes.ByteArray(), Serdes.ByteArray()))
                .to(order.output(), Produced.with(Serdes.ByteArray(), Serdes.ByteArray()));
        running = new KafkaStreams(topology.build(), settings);
        running.setUncaughtExceptionHandler(error -> {
            failed.set(error);
            return StreamThreadExceptionResponse.SHUTDOWN_CLIENT;
        });
        running.start();
    }

    @Override
    void stop() {
        running.close(PATIENCE);
        if (failed.get() != null) throw new IllegalStateException(failed.get());
    }

    private static Map<TopicPartition, Long> ends(Admin admin, String topic) throws Exception {
        Map<TopicPartition, OffsetSpec> latest = new HashMap<>();
        admin.describeTopics(List.of(topic)).allTopicNames().get().get(topic).partitions()
                .forEach(each -> latest.put(new TopicPartition(topic, each.partition()), OffsetSpec.latest()));
        Map<TopicPartition, Long> ends = new HashMap<>();
        admin.listOffsets(latest).all().get().forEach((partition, found) -> ends.put(partition, found.offset()));
        ends.values().removeIf(end -> end == 0);
        return ends;
    }

    private static Map<TopicPartition, OffsetAndMetadata> committed(Admin admin, String group) throws Exception {
        return admin.listConsumerGroupOffsets(group, new ListConsumerGroupOffsetsOptions().requireStable(true))
                .partitionsToOffsetAndMetadata().get();
    }

    private static boolean reached(Map<TopicPartition, Long> ends, Map<TopicPartition, OffsetAndMetadata> done) {
        return ends.entrySet().stream()
                .allMatch(end -> done.get(end.getKey()) != null && done.get(end.getKey()).offset() >= end.getValue());
    }
}
