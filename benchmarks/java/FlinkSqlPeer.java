import java.io.File;
import java.util.List;
import org.apache.flink.configuration.Configuration;
import org.apache.flink.streaming.api.environment.StreamExecutionEnvironment;
import org.apache.flink.table.api.bridge.java.StreamTableEnvironment;

/**
 * Flink's SQL, exactly once, two slots in one JVM. Arguments: milliseconds between checkpoints, a
 * folder for them. An order brings the statements; the last one inserts, and is waited for.
 */
final class FlinkSqlPeer extends Peer {

    private final long checkpointMs;
    private final Configuration settings = new Configuration();

    private FlinkSqlPeer(long checkpointMs, String folder) {
        this.checkpointMs = checkpointMs;
        settings.setString("restart-strategy.type", "none"); // a failure ends the run: it is no slow one
        settings.setString("execution.checkpointing.storage", "filesystem");
        settings.setString("execution.checkpointing.dir", new File(folder, "checkpoints").toURI().toString());
        settings.setString("table.local-time-zone", "UTC");
        settings.setString("pipeline.object-reuse", "true");
    }

    public static void main(String[] arguments) throws Exception {
        new FlinkSqlPeer(Long.parseLong(arguments[0]), arguments[1]).serve();
    }

    @Override
    void copy(Copy order) throws Exception {
        StreamExecutionEnvironment job = StreamExecutionEnvironment.createLocalEnvironment(2, settings);
        job.enableCheckpointing(checkpointMs);
        StreamTableEnvironment tables = StreamTableEnvironment.create(job);
        List<String> statements = order.statements();
        for (String statement : statements.subList(0, statements.size() - 1)) tables.executeSql(statement);
        tables.executeSql(statements.get(statements.size() - 1)).await();
    }

    @Override
    void start(Copy order) {
        throw new UnsupportedOperationException("it copies, and does not follow");
    }

    @Override
    void stop() {
        throw new UnsupportedOperationException("it copies, and does not follow");
    }
}
