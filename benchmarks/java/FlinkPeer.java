import java.io.File;
import java.util.Properties;
import org.apache.flink.api.common.eventtime.WatermarkStrategy;
import org.apache.flink.api.common.typeinfo.TypeHint;
import org.apache.flink.api.common.typeinfo.TypeInformation;
import org.apache.flink.configuration.Configuration;
import org.apache.flink.connector.base.DeliveryGuarantee;
import org.apache.flink.connector.kafka.sink.KafkaRecordSerializationSchema;
import org.apache.flink.connector.kafka.sink.KafkaSink;
import org.apache.flink.connector.kafka.source.KafkaSource;
import org.apache.flink.connector.kafka.source.KafkaSourceBuilder;
import org.apache.flink.connector.kafka.source.enumerator.initializer.OffsetsInitializer;
import org.apache.flink.connector.kafka.source.reader.deserializer.KafkaRecordDeserializationSchema;
import org.apache.flink.core.execution.JobClient;
import org.apache.flink.streaming.api.environment.StreamExecutionEnvironment;
import org.apache.flink.util.Collector;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.producer.ProducerRecord;

/**
 * Flink's own connector, exactly once, two slots in one JVM. Arguments: milliseconds between
 * checkpoints, a folder for them.
 *
 * <p>As quick as its users can have it: the consumer's own record travels through one chain of
 * operators with object reuse, so that nothing is copied or serialised in between.
 */
final class FlinkPeer extends Peer {

    private final long checkpointMs;
    private final Configuration settings = new Configuration();
    private JobClient running;

    private FlinkPeer(long checkpointMs, String folder) {
        this.checkpointMs = checkpointMs;
        settings.setString("restart-strategy.type", "none"); // a failure ends the run: it is no slow one
        settings.setString("execution.checkpointing.storage", "filesystem");
        settings.setString("execution.checkpointing.dir", new File(folder, "checkpoints").toURI().toString());
    }

    public static void main(String[] arguments) throws Exception {
        new FlinkPeer(Long.parseLong(arguments[0]), arguments[1]).serve();
    }

    @Override
    void copy(Copy order) throws Exception {
        job(order, true).execute(order.output());
    }

    @Override
    void start(Copy order) throws Exception {
        running = job(order, false).executeAsync(order.output());
    }

    @Override
    void stop() throws Exception {
        running.cancel().get();
    }

    private StreamExecutionEnvironment job(Copy order, boolean bounded) {
        StreamExecutionEnvironment job = StreamExecutionEnvironment.createLocalEnvironment(2, settings);
        job.enableCheckpointing(checkpointMs);
        job.getConfig().enableObjectReuse();
        KafkaSourceBuilder<ConsumerRecord<byte[], byte[]>> source =
                KafkaSource.<ConsumerRecord<byte[], byte[]>>builder()
                        .setBootstrapServers(order.bootstrapServers())
                        .setTopics(order.source())
                        .setGroupId(order.output())
                        .setProperty("isolation.level", "read_committed")
                        .setStartingOffsets(OffsetsInitializer.earliest())
                        .setDeserializer(new Unparsed());
        if (bounded) source.setBounded(OffsetsInitializer.latest());
        Properties producer = new Properties();
        // The connector's default, an hour, is above what brokers allow by default
        producer.setProperty("transaction.timeout.ms", "600000");
        producer.setProperty("compression.type", order.compression());
        String output = order.output();
        KafkaSink<ConsumerRecord<byte[], byte[]>> sink = KafkaSink.<ConsumerRecord<byte[], byte[]>>builder()
                .setBootstrapServers(order.bootstrapServers())
                .setKafkaProducerConfig(producer)
                .setRecordSerializer((KafkaRecordSerializationSchema<ConsumerRecord<byte[], byte[]>>)
                        (row, context, time) -> new ProducerRecord<>(output, row.key(), row.value()))
                .setDeliveryGuarantee(DeliveryGuarantee.EXACTLY_ONCE)
                .setTransactionalIdPrefix(output)
                .build();
        job.fromSource(source.build(), WatermarkStrategy.noWatermarks(), "source").sinkTo(sink);
        return job;
    }

    private static final class Unparsed implements KafkaRecordDeserializationSchema<ConsumerRecord<byte[], byte[]>> {
        @Override
        public void deserialize(ConsumerRecord<byte[], byte[]> row, Collector<ConsumerRecord<byte[], byte[]>> out) {
            out.collect(row);
        }

        @Override
        public TypeInformation<ConsumerRecord<byte[], byte[]>> getProducedType() {
            return TypeInformation.of(new TypeHint<ConsumerRecord<byte[], byte[]>>() {});
        }
    }
}
