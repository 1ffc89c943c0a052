import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.Future;
import java.util.stream.Collectors;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.DescribeClusterResult;
import org.apache.kafka.clients.admin.LogDirDescription;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.clients.producer.RecordMetadata;
import org.apache.kafka.common.Node;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.TopicPartitionInfo;
import org.apache.kafka.common.serialization.StringDeserializer;
import org.apache.kafka.common.serialization.StringSerializer;

/**
 * What Kafka's Java client sees of a cluster, as lines for test_cluster_clients.py.
 *
 *     describe BOOTSTRAP TOPIC             node ID HOST PORT RACK…, controller ID,
 *                                          partition N LEADER REPLICAS ISR…, dir NODE PARTITIONS…
 *     send BOOTSTRAP TOPIC PARTITIONS COUNT PREFIX     COUNT values to each partition
 *     stream BOOTSTRAP TOPIC PARTITIONS STOP PREFIX PACE   COUNT: one to each every PACE ms, until
 *                                          there is a file STOP
 *     read BOOTSTRAP TOPIC PARTITIONS COUNT            PARTITION OFFSET VALUE, until COUNT of each
 */
public class JavaCluster {
    private static final long DEADLINE_MS = 60_000;

    public static void main(String[] arguments) throws Exception {
        String bootstrap = arguments[1];
        String topic = arguments[2];
        switch (arguments[0]) {
            case "describe" -> describe(bootstrap, topic);
            case "send" -> send(bootstrap, topic, Integer.parseInt(arguments[3]),
                Integer.parseInt(arguments[4]), arguments[5]);
            case "stream" -> stream(bootstrap, topic, Integer.parseInt(arguments[3]),
                Path.of(arguments[4]), arguments[5], Long.parseLong(arguments[6]));
            default -> read(bootstrap, topic, Integer.parseInt(arguments[3]),
                Integer.parseInt(arguments[4]));
        }
    }

    private static void describe(String bootstrap, String topic) throws Exception {
        try (Admin admin = Admin.create(Map.of("bootstrap.servers", bootstrap))) {
            DescribeClusterResult cluster = admin.describeCluster();
            for (Node node : cluster.nodes().get()) {
                say("node", node.id(), node.host(), node.port(), node.rack());
            }
            say("controller", cluster.controller().get().id());
            var described = admin.describeTopics(Set.of(topic)).allTopicNames().get().get(topic);
            for (TopicPartitionInfo info : described.partitions()) {
                say("partition", info.partition(), info.leader().id(), ids(info.replicas()),
                    ids(info.isr()));
            }
            List<Integer> nodes = cluster.nodes().get().stream().map(Node::id).toList();
            for (var of : admin.describeLogDirs(nodes).allDescriptions().get().entrySet()) {
                for (LogDirDescription dir : of.getValue().values()) {
                    say("dir", of.getKey(), dir.replicaInfos().keySet().stream()
                        .filter(partition -> partition.topic().equals(topic))
                        .map(partition -> Integer.toString(partition.partition()))
                        .collect(Collectors.joining(",")));
                }
            }
        }
    }

    private static String ids(List<Node> nodes) {
        return nodes.stream().map(node -> Integer.toString(node.id()))
            .collect(Collectors.joining(","));
    }

    private static void send(String bootstrap, String topic, int partitions, int count,
            String prefix) throws Exception {
        StringSerializer strings = new StringSerializer();
        Map<String, Object> configs = Map.of("bootstrap.servers", bootstrap);
        List<Future<RecordMetadata>> sent = new ArrayList<>();
        try (KafkaProducer<String, String> producer =
                new KafkaProducer<>(configs, strings, strings)) {
            for (int n = 0; n < count; n++) {
                for (int partition = 0; partition < partitions; partition++) {
                    sent.add(producer.send(
                        new ProducerRecord<>(topic, partition, null, prefix + n)));
                }
            }
            for (Future<RecordMetadata> one : sent) {
                one.get();
            }
        }
    }

    private static void stream(String bootstrap, String topic, int partitions, Path stop,
            String prefix, long paceMs) throws Exception {
        StringSerializer strings = new StringSerializer();
        Map<String, Object> configs = Map.of("bootstrap.servers", bootstrap);
        List<Future<RecordMetadata>> sent = new ArrayList<>();
        int count = 0;
        try (KafkaProducer<String, String> producer =
                new KafkaProducer<>(configs, strings, strings)) {
            for (; !Files.exists(stop); count++) {
                for (int partition = 0; partition < partitions; partition++) {
                    sent.add(producer.send(
                        new ProducerRecord<>(topic, partition, null, prefix + count)));
                }
                Thread.sleep(paceMs);
            }
            for (Future<RecordMetadata> one : sent) {
                one.get();
            }
        }
        say(count);
    }

    private static void read(String bootstrap, String topic, int partitions, int count) {
        StringDeserializer strings = new StringDeserializer();
        Map<String, Object> configs = Map.of("bootstrap.servers", bootstrap,
            "enable.auto.commit", false, "client.rack", "zone-1");
        List<TopicPartition> all = new ArrayList<>();
        for (int partition = 0; partition < partitions; partition++) {
            all.add(new TopicPartition(topic, partition));
        }
        long deadline = System.currentTimeMillis() + DEADLINE_MS;
        int left = partitions * count;
        try (KafkaConsumer<String, String> consumer =
                new KafkaConsumer<>(configs, strings, strings)) {
            consumer.assign(all);
            consumer.seekToBeginning(all);
            while (left > 0 && System.currentTimeMillis() < deadline) {
                for (ConsumerRecord<String, String> found : consumer.poll(Duration.ofMillis(200))) {
                    say(found.partition(), found.offset(), found.value());
                    left--;
                }
            }
        }
    }

    private static void say(Object... fields) {
        StringBuilder line = new StringBuilder();
        for (Object field : fields) {
            line.append(line.length() == 0 ? "" : "\t").append(field);
        }
        byte[] bytes = line.append("\n").toString().getBytes(StandardCharsets.UTF_8);
        System.out.write(bytes, 0, bytes.length);
        System.out.flush();
    }
}
