import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;

/**
 * A contender in Java: copies topics as it is told.
 *
 * <p>Orders and answers are those of {@code serving.py}. Key and value are
 * handed on as bytes: nothing is parsed. The JVM lives through all rounds, so that each contender is
 * measured warm.
 */
abstract class Peer {

    /**
     * Where to read, where to write; transactional ids and group are called as the output is. The
     * statements are for one that speaks SQL.
     */
    record Copy(
            String bootstrapServers, String source, String output, String compression, List<String> statements) {}

    /** Copies what the source holds now; returns once all of it is committed. */
    abstract void copy(Copy order) throws Exception;

    /** Copies whatever comes, until {@link #stop}. */
    abstract void start(Copy order) throws Exception;

    abstract void stop() throws Exception;

    /** Serves orders until stdin ends, and ends the process then. */
    final void serve() throws Exception {
        PrintStream answers = new PrintStream(System.out, true, StandardCharsets.UTF_8);
        System.setOut(System.err); // libraries may not talk in between
        ObjectMapper json = new ObjectMapper();
        answers.println(json.writeValueAsString(Map.of("pid", 0, "jvm_pid", ProcessHandle.current().pid())));
        BufferedReader orders = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line; (line = orders.readLine()) != null; ) {
            Map<String, Object> answer;
            try {
                answer = answered(json.readTree(line));
            } catch (Throwable error) { // the owner raises it, whatever it is
                error.printStackTrace();
                answer = Map.of("error", error.toString());
            }
            answers.println(json.writeValueAsString(answer));
        }
        System.exit(0);
    }

    private Map<String, Object> answered(JsonNode order) throws Exception {
        switch (order.get("do").asText()) {
            case "copy" -> copy(parsed(order));
            case "start" -> start(parsed(order));
            case "stop" -> stop();
            case "collect_garbage" -> System.gc();
            case "mark" -> {}
            default -> throw new IllegalArgumentException(order.toString());
        }
        Map<String, Object> answer = new HashMap<>();
        answer.put("batch_s", List.of()); // it has none
        answer.put("batches", 0);
        answer.put("phases_ms", Map.of());
        answer.put("steps_ms", Map.of());
        return answer;
    }

    private static Copy parsed(JsonNode order) {
        List<String> statements = new ArrayList<>();
        order.path("statements").forEach(statement -> statements.add(statement.asText()));
        return new Copy(
                order.get("bootstrap_servers").asText(),
                order.get("source").asText(),
                order.get("name").asText(),
                order.path("compression").asText("none"),
                statements);
    }
}
