import java.util.Collection;
import java.util.Comparator;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.Properties;
import java.util.Set;
import java.util.TreeMap;
import java.util.TreeSet;
import java.util.concurrent.Callable;
import java.util.concurrent.ExecutionException;
import java.util.function.Function;
import java.util.stream.Collectors;
import java.util.stream.Stream;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.AlterConfigOp;
import org.apache.kafka.clients.admin.ConfigEntry;
import org.apache.kafka.clients.admin.DescribeClusterOptions;
import org.apache.kafka.clients.admin.DescribeConfigsOptions;
import org.apache.kafka.clients.admin.DescribeConsumerGroupsOptions;
import org.apache.kafka.clients.admin.DescribeTopicsOptions;
import org.apache.kafka.clients.admin.ListConsumerGroupOffsetsSpec;
import org.apache.kafka.clients.admin.ListGroupsOptions;
import org.apache.kafka.clients.admin.ListTopicsOptions;
import org.apache.kafka.clients.admin.NewPartitions;
import org.apache.kafka.clients.admin.NewTopic;
import org.apache.kafka.clients.admin.OffsetSpec;
import org.apache.kafka.clients.admin.RecordsToDelete;
import org.apache.kafka.clients.consumer.ConsumerConfig;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.Node;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.acl.AclBindingFilter;
import org.apache.kafka.common.config.ConfigResource;
import org.apache.kafka.common.quota.ClientQuotaFilter;
import org.apache.kafka.common.serialization.BytesDeserializer;
import org.apache.kafka.common.serialization.StringSerializer;
import org.apache.kafka.common.utils.Bytes;

/**
 * What web interfaces for Kafka ask of a cluster through the Java admin client, page by page, and
 * what they would show: clusters and what they can do, brokers, topics, records, groups with lag,
 * and the buttons of each page.
 *
 *     --bootstrap-server ADDRESS
 */
public class UserInterface {
    private static final String TOPIC = "shown";
    private static final String GROUP = "g-shown";
    /** A hundred years and two hundred: the records are of 2020, and are to stay. */
    private static final String KEPT_MS = "3153600000000";
    private static final String KEPT_LONGER_MS = "6307200000000";
    private final Admin admin;
    private final String bootstrap;

    private UserInterface(Admin admin, String bootstrap) {
        this.admin = admin;
        this.bootstrap = bootstrap;
    }

    public static void main(String[] arguments) throws Exception {
        String bootstrap = arguments[1];
        Map<String, Object> configs = Map.of("bootstrap.servers", bootstrap,
            "client.id", "user-interface", "request.timeout.ms", 20_000,
            "default.api.timeout.ms", 30_000);
        try (Admin admin = Admin.create(configs)) {
            UserInterface page = new UserInterface(admin, bootstrap);
            page.cluster();
            page.makeTopic();
            page.write();
            page.brokers();
            page.topics();
            page.records();
            page.groups();
            page.changeTopic();
            page.clear();
        }
    }

    private void cluster() throws Exception {
        var cluster = admin.describeCluster(
            new DescribeClusterOptions().includeAuthorizedOperations(true));
        say("nodes", ids(cluster.nodes().get()));
        say("controller", cluster.controller().get().id());
        say("id", cluster.clusterId().get().length() + " characters");
        tell("operations", () -> sorted(cluster.authorizedOperations().get()));
        tell("version", () -> admin.describeFeatures().featureMetadata().get()
            .finalizedFeatures().get("metadata.version").maxVersionLevel());
        tell("rules", () -> admin.describeAcls(AclBindingFilter.ANY).values().get());
        tell("quotas", () -> admin.describeClientQuotas(ClientQuotaFilter.all()).entities().get());
        tell("users", () -> admin.describeUserScramCredentials().all().get());
        tell("quorum", () -> {
            var quorum = admin.describeMetadataQuorum().quorumInfo().get();
            return "led by " + quorum.leaderId() + " of " + quorum.voters().size();
        });
        tell("reassignments", () -> admin.listPartitionReassignments().reassignments().get());
        tell("transactions", () -> admin.listTransactions().all().get());
    }

    private void makeTopic() throws Exception {
        NewTopic topic = new NewTopic(TOPIC, Optional.of(3), Optional.empty())
            .configs(Map.of("retention.ms", KEPT_MS));
        tell("make", () -> {
            var made = admin.createTopics(Set.of(topic));
            made.all().get();
            return made.numPartitions(TOPIC).get() + " " + made.replicationFactor(TOPIC).get()
                + " " + made.config(TOPIC).get().get("retention.ms").value();
        });
        tell("make again", () -> admin.createTopics(Set.of(topic)).all().get());
    }

    private void write() throws Exception {
        Map<String, Object> configs = Map.of("bootstrap.servers", bootstrap);
        StringSerializer strings = new StringSerializer();
        try (var producer = new KafkaProducer<>(configs, strings, strings)) {
            for (int n = 0; n < 30; n++) {
                producer.send(new ProducerRecord<>(TOPIC, n % 3, 1_600_000_000_000L + n,
                    "key " + n, "value " + n)).get();
            }
        }
    }

    private void brokers() throws Exception {
        List<Integer> nodes = admin.describeCluster().nodes().get().stream().map(Node::id).toList();
        tell("directories", () -> admin.describeLogDirs(nodes).allDescriptions().get().values()
            .stream().flatMap(dirs -> dirs.values().stream())
            .map(dir -> dir.error() + " " + dir.replicaInfos().entrySet().stream()
                .filter(replica -> replica.getKey().topic().equals(TOPIC))
                .sorted(Comparator.comparing(replica -> replica.getKey().partition()))
                .map(replica -> replica.getKey() + (replica.getValue().size() > 0 ? " full" : "")
                    + " " + replica.getValue().offsetLag())
                .toList())
            .toList());
        tell("delete.topic.enable", () -> {
            var resource = new ConfigResource(ConfigResource.Type.BROKER,
                nodes.get(0).toString());
            var configs = describe(resource);
            return configs.get("delete.topic.enable").value() + ", documented: "
                + configs.values().stream().allMatch(config -> config.documentation() != null);
        });
    }

    private void topics() throws Exception {
        Set<String> names = admin.listTopics(new ListTopicsOptions().listInternal(true))
            .names().get();
        say("there is the topic", names.contains(TOPIC));
        var topic = admin.describeTopics(Set.of(TOPIC),
            new DescribeTopicsOptions().includeAuthorizedOperations(true))
            .allTopicNames().get().get(TOPIC);
        say("topic", topic.name(), topic.isInternal(), sorted(topic.authorizedOperations()));
        topic.partitions().forEach(partition -> say("partition", partition.partition(),
            partition.leader().id(), ids(partition.replicas()), ids(partition.isr()),
            partition.elr(), partition.lastKnownElr()));
        tell("configs", () -> {
            var configs = describe(new ConfigResource(ConfigResource.Type.TOPIC, TOPIC));
            ConfigEntry retention = configs.get("retention.ms");
            return configs.keySet() + " " + retention.value() + " " + retention.source() + " "
                + retention.isDefault() + " " + retention.type() + " " + retention.synonyms();
        });
        tell("first", () -> offsets(OffsetSpec.earliest()));
        tell("last", () -> offsets(OffsetSpec.latest()));
        tell("since", () -> offsets(OffsetSpec.forTimestamp(1_600_000_000_015L)));
        tell("newest", () -> offsets(OffsetSpec.maxTimestamp()));
        tell("producers", () -> admin.describeProducers(partitions()).all().get().values().stream()
            .map(state -> state.activeProducers().size()).toList());
        tell("no topic", () -> admin.describeTopics(Set.of("none")).allTopicNames().get());
    }

    private void records() {
        Map<String, Object> configs = Map.of("bootstrap.servers", bootstrap,
            "enable.auto.commit", false, "max.poll.records", 5);
        var bytes = new BytesDeserializer();
        try (var consumer = new KafkaConsumer<>(configs, bytes, bytes)) {
            say("bounds", new TreeMap<>(names(consumer.beginningOffsets(partitions()))),
                new TreeMap<>(names(consumer.endOffsets(partitions()))));
            TopicPartition last = new TopicPartition(TOPIC, 2);
            consumer.assign(List.of(last));
            consumer.seek(last, 6);
            long deadline = System.currentTimeMillis() + 20_000;
            int left = 4;
            while (left > 0 && System.currentTimeMillis() < deadline) {
                for (ConsumerRecord<Bytes, Bytes> found
                        : consumer.poll(java.time.Duration.ofMillis(200))) {
                    say("record", found.partition(), found.offset(), found.timestamp(),
                        found.timestampType(), found.key(), found.value());
                    left--;
                }
            }
        }
    }

    private void groups() throws Exception {
        Properties configs = new Properties();
        configs.putAll(Map.of("bootstrap.servers", bootstrap, ConsumerConfig.GROUP_ID_CONFIG, GROUP,
            "enable.auto.commit", false, "auto.offset.reset", "earliest", "client.id", "c"));
        var bytes = new BytesDeserializer();
        try (var consumer = new KafkaConsumer<>(configs, bytes, bytes)) {
            consumer.subscribe(Set.of(TOPIC));
            while (consumer.assignment().isEmpty()) {
                consumer.poll(java.time.Duration.ofMillis(200));
            }
            consumer.commitSync(Map.of(new TopicPartition(TOPIC, 0), new OffsetAndMetadata(4, "x"),
                new TopicPartition(TOPIC, 1), new OffsetAndMetadata(10)));
            group("with a member");
            tell("delete what is used", () -> admin.deleteConsumerGroups(Set.of(GROUP)).all().get());
            tell("reset what is used", () -> admin.alterConsumerGroupOffsets(GROUP,
                Map.of(new TopicPartition(TOPIC, 0), new OffsetAndMetadata(0))).all().get());
        }
        tell("reset", () -> admin.alterConsumerGroupOffsets(GROUP,
            Map.of(new TopicPartition(TOPIC, 0), new OffsetAndMetadata(1))).all().get());
        group("left");
        tell("forget", () -> admin.deleteConsumerGroupOffsets(GROUP,
            Set.of(new TopicPartition(TOPIC, 1))).all().get());
        tell("no group", () -> admin.describeConsumerGroups(Set.of("none")).all().get());
    }

    private void group(String when) throws Exception {
        tell("listed " + when, () -> admin.listGroups(new ListGroupsOptions()).all().get().stream()
            .filter(group -> group.groupId().equals(GROUP))
            .map(group -> group.type() + " " + group.protocol() + " " + group.groupState())
            .toList());
        var group = admin.describeConsumerGroups(Set.of(GROUP),
            new DescribeConsumerGroupsOptions().includeAuthorizedOperations(true))
            .all().get().get(GROUP);
        say("group", group.groupState(), group.partitionAssignor(), group.type(),
            group.isSimpleConsumerGroup(), group.coordinator().id(),
            sorted(group.authorizedOperations()));
        group.members().forEach(member -> say("member", member.clientId(), member.host(),
            member.groupInstanceId(), member.assignment().topicPartitions().stream()
                .map(TopicPartition::toString).sorted().toList()));
        var committed = admin.listConsumerGroupOffsets(
            Map.of(GROUP, new ListConsumerGroupOffsetsSpec())).all().get().get(GROUP);
        var ends = admin.listOffsets(partitions().stream()
            .collect(Collectors.toMap(Function.identity(), at -> OffsetSpec.latest()))).all().get();
        committed.entrySet().stream()
            .sorted(Comparator.comparing(entry -> entry.getKey().partition()))
            .forEach(entry -> say("lag", entry.getKey(), entry.getValue().offset(),
                entry.getValue().metadata(),
                ends.get(entry.getKey()).offset() - entry.getValue().offset()));
    }

    private void changeTopic() {
        ConfigResource topic = new ConfigResource(ConfigResource.Type.TOPIC, TOPIC);
        for (var config : List.of(Map.entry("retention.ms", KEPT_LONGER_MS),
                Map.entry("retention.ms", "?"), Map.entry("nope", "1"))) {
            var set = new AlterConfigOp(new ConfigEntry(config.getKey(), config.getValue()),
                AlterConfigOp.OpType.SET);
            tell("set " + config,
                () -> admin.incrementalAlterConfigs(Map.of(topic, List.of(set))).all().get());
        }
        tell("more", () -> admin.createPartitions(Map.of(TOPIC, NewPartitions.increaseTo(5)))
            .all().get());
        tell("fewer", () -> admin.createPartitions(Map.of(TOPIC, NewPartitions.increaseTo(2)))
            .all().get());
        TopicPartition first = new TopicPartition(TOPIC, 0);
        tell("empty", () -> admin.deleteRecords(Map.of(first, RecordsToDelete.beforeOffset(-1)))
            .lowWatermarks().get(first).get().lowWatermark());
        tell("first now", () -> offsets(OffsetSpec.earliest()));
    }

    private void clear() {
        tell("delete group", () -> admin.deleteConsumerGroups(Set.of(GROUP)).all().get());
        tell("delete topic", () -> admin.deleteTopics(Set.of(TOPIC)).all().get());
        tell("delete again", () -> admin.deleteTopics(Set.of(TOPIC)).all().get());
    }

    private TreeMap<String, ConfigEntry> describe(ConfigResource resource) throws Exception {
        var configs = admin.describeConfigs(Set.of(resource),
            new DescribeConfigsOptions().includeSynonyms(true).includeDocumentation(true))
            .all().get().get(resource).entries();
        return new TreeMap<>(configs.stream()
            .collect(Collectors.toMap(ConfigEntry::name, Function.identity())));
    }

    private List<TopicPartition> partitions() {
        return Stream.of(0, 1, 2).map(number -> new TopicPartition(TOPIC, number)).toList();
    }

    private Object offsets(OffsetSpec spec) throws Exception {
        var found = admin.listOffsets(partitions().stream()
            .collect(Collectors.toMap(Function.identity(), at -> spec))).all().get();
        return partitions().stream()
            .map(at -> found.get(at).offset() + "@" + found.get(at).timestamp()).toList();
    }

    private static Map<String, Object> names(Map<TopicPartition, ?> values) {
        return values.entrySet().stream()
            .collect(Collectors.toMap(entry -> entry.getKey().toString(), Map.Entry::getValue));
    }

    private static String ids(Collection<Node> nodes) {
        return nodes.stream().map(Node::idString).sorted().collect(Collectors.joining(","));
    }

    private static String sorted(Collection<?> values) {
        return values == null ? "null" : values.stream().map(Object::toString)
            .collect(Collectors.toCollection(TreeSet::new)).toString();
    }

    private static void tell(String what, Callable<?> call) {
        try {
            say(what, call.call());
        } catch (ExecutionException error) {
            say(what, error.getCause().getClass().getSimpleName(), error.getCause().getMessage());
        } catch (Exception error) {
            say(what, error);
        }
    }

    private static void say(Object... fields) {
        System.out.println(Stream.of(fields).map(String::valueOf)
            .collect(Collectors.joining("  ")));
    }
}
