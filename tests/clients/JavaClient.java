import java.io.BufferedOutputStream;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Base64;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.Future;
import java.util.concurrent.TimeUnit;
import java.util.stream.Collectors;
import java.util.stream.StreamSupport;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.clients.producer.RecordMetadata;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.header.Header;
import org.apache.kafka.common.header.internals.RecordHeader;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;
import org.apache.kafka.common.serialization.ByteArraySerializer;

/**
 * Kafka's Java client as peers.py drives it: records come and go as lines, in Base64, "!" for null.
 *
 *     produce BOOTSTRAP FILE             topic NAME CODEC… then record TIMESTAMP KEY VALUE HEADERS…
 *     consume BOOTSTRAP FILE ISOLATION   topic NAME COUNT…
 */
public class JavaClient {
    public static void main(String[] arguments) throws Exception {
        List<String[]> lines = Files.readAllLines(Path.of(arguments[2])).stream()
            .map(line -> line.split("\t")).toList();
        if (arguments[0].equals("produce")) {
            produce(arguments[1], lines);
        } else {
            consume(arguments[1], lines, arguments[3]);
        }
    }

    private static void produce(String bootstrap, List<String[]> lines) throws Exception {
        ByteArraySerializer bytes = new ByteArraySerializer();
        for (String[] topic : lines) {
            if (!topic[0].equals("topic")) {
                continue;
            }
            Map<String, Object> configs = Map.of(
                "bootstrap.servers", bootstrap, "compression.type", topic[2], "linger.ms", 20);
            List<Future<RecordMetadata>> sent = new ArrayList<>();
            try (KafkaProducer<byte[], byte[]> producer = new KafkaProducer<>(configs, bytes, bytes)) {
                for (String[] line : lines) {
                    if (line[0].equals("record")) {
                        sent.add(producer.send(new ProducerRecord<>(topic[1], 0,
                            Long.parseLong(line[1]), decode(line[2]), decode(line[3]),
                            headers(line[4]))));
                    }
                }
                for (Future<RecordMetadata> future : sent) {
                    future.get(60, TimeUnit.SECONDS);
                }
            }
        }
    }

    private static void consume(String bootstrap, List<String[]> lines, String isolation) {
        Map<String, Object> configs = Map.of(
            "bootstrap.servers", bootstrap, "isolation.level", isolation, "fetch.max.wait.ms", 100,
            "max.partition.fetch.bytes", 4 << 20, "auto.offset.reset", "none");
        ByteArrayDeserializer bytes = new ByteArrayDeserializer();
        PrintStream out = new PrintStream(new BufferedOutputStream(System.out, 1 << 20));
        Map<String, Integer> left = new HashMap<>();
        lines.forEach(line -> left.put(line[1], Integer.parseInt(line[2])));
        try (KafkaConsumer<byte[], byte[]> consumer = new KafkaConsumer<>(configs, bytes, bytes)) {
            var partitions = left.keySet().stream().map(t -> new TopicPartition(t, 0)).toList();
            consumer.assign(partitions);
            partitions.forEach(partition -> consumer.seek(partition, 0));
            long deadline = System.nanoTime() + 60_000_000_000L;
            while (left.values().stream().anyMatch(n -> n > 0) && System.nanoTime() < deadline) {
                for (ConsumerRecord<byte[], byte[]> r : consumer.poll(Duration.ofMillis(200))) {
                    left.merge(r.topic(), -1, Integer::sum);
                    out.println(String.join("\t", r.topic(), "" + r.offset(),
                        "" + r.timestampType().id, "" + r.timestamp(), encode(r.key()),
                        encode(r.value()), encode(r.headers())));
                }
            }
        }
        out.flush();
    }

    private static List<Header> headers(String text) {
        List<Header> found = new ArrayList<>();
        if (!text.equals("-")) {
            for (String pair : text.split(",")) {
                String[] parts = pair.split(":", -1);
                String name = new String(decode(parts[0]), StandardCharsets.UTF_8);
                found.add(new RecordHeader(name, decode(parts[1])));
            }
        }
        return found;
    }

    private static String encode(Iterable<Header> headers) {
        String text = StreamSupport.stream(headers.spliterator(), false)
            .map(h -> encode(h.key().getBytes(StandardCharsets.UTF_8)) + ":" + encode(h.value()))
            .collect(Collectors.joining(","));
        return text.isEmpty() ? "-" : text;
    }

    private static String encode(byte[] data) {
        return data == null ? "!" : Base64.getEncoder().encodeToString(data);
    }

    private static byte[] decode(String text) {
        return text.equals("!") ? null : Base64.getDecoder().decode(text);
    }
}
