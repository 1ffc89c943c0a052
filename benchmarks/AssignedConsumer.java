import java.time.Duration;
import java.util.Map;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;

/** ConsumerPerformance without a group: reads all partitions of a topic from the start, counts. */
public class AssignedConsumer {
    public static void main(String[] arguments) {
        String topic = arguments[1];
        long wanted = Long.parseLong(arguments[2]);
        Map<String, Object> configs = Map.of(
            "bootstrap.servers", arguments[0],
            "check.crcs", "false",
            "receive.buffer.bytes", 2 * 1024 * 1024);
        ByteArrayDeserializer bytes = new ByteArrayDeserializer();
        try (KafkaConsumer<byte[], byte[]> consumer = new KafkaConsumer<>(configs, bytes, bytes)) {
            var partitions = consumer.partitionsFor(topic).stream()
                .map(info -> new TopicPartition(topic, info.partition())).toList();
            consumer.assign(partitions);
            consumer.seekToBeginning(partitions);
            long records = 0, size = 0, began = System.nanoTime(), last = began;
            while (records < wanted && System.nanoTime() - last < 30_000_000_000L) {
                for (ConsumerRecord<byte[], byte[]> record : consumer.poll(Duration.ofMillis(100))) {
                    records++;
                    size += record.value() == null ? 0 : record.value().length;
                    last = System.nanoTime();
                }
            }
            System.out.printf("records=%d bytes=%d seconds=%.3f%n", records, size, (last - began) / 1e9);
        }
    }
}
