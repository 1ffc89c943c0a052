import java.time.Duration;
import java.util.Collection;
import java.util.List;
import java.util.Properties;
import org.apache.kafka.clients.consumer.ConsumerRebalanceListener;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;

/**
 * A member of a group, as grouping.py drives it: it leaves when its standard input ends.
 *
 *     BOOTSTRAP GROUP TOPIC NAME=VALUE…      prints  + PARTITION…   - PARTITION…   PARTITION OFFSET
 */
public class JavaGroup {
    public static void main(String[] arguments) throws Exception {
        Properties configs = new Properties();
        configs.put("bootstrap.servers", arguments[0]);
        configs.put("group.id", arguments[1]);
        configs.put("auto.offset.reset", "earliest");
        configs.put("enable.auto.commit", "false");
        for (int i = 3; i < arguments.length; i++) {
            String[] pair = arguments[i].split("=", 2);
            configs.put(pair[0], pair[1]);
        }
        ByteArrayDeserializer bytes = new ByteArrayDeserializer();
        try (KafkaConsumer<byte[], byte[]> consumer = new KafkaConsumer<>(configs, bytes, bytes)) {
            consumer.subscribe(List.of(arguments[2]), new ConsumerRebalanceListener() {
                @Override
                public void onPartitionsRevoked(Collection<TopicPartition> revoked) {
                    consumer.commitSync();
                    say("-", revoked);
                }

                @Override
                public void onPartitionsAssigned(Collection<TopicPartition> assigned) {
                    say("+", assigned);
                }

                @Override
                public void onPartitionsLost(Collection<TopicPartition> lost) {
                    say("-", lost);
                }
            });
            while (System.in.available() == 0) {
                for (ConsumerRecord<byte[], byte[]> record : consumer.poll(Duration.ofMillis(100))) {
                    System.out.println(record.partition() + " " + record.offset());
                }
                System.out.flush();
            }
            consumer.commitSync();
        }
    }

    private static void say(String what, Collection<TopicPartition> partitions) {
        StringBuilder line = new StringBuilder(what);
        partitions.forEach(partition -> line.append(' ').append(partition.partition()));
        System.out.println(line);
        System.out.flush();
    }
}
