import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.Collection;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.Set;
import java.util.TreeMap;
import java.util.TreeSet;
import java.util.concurrent.Callable;
import java.util.concurrent.ExecutionException;
import java.util.function.Function;
import java.util.stream.Collectors;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.AlterConfigOp;
import org.apache.kafka.clients.admin.Config;
import org.apache.kafka.clients.admin.ConfigEntry;
import org.apache.kafka.clients.admin.ConsumerGroupDescription;
import org.apache.kafka.clients.admin.ConsumerGroupListing;
import org.apache.kafka.clients.admin.DescribeClusterOptions;
import org.apache.kafka.clients.admin.DescribeClusterResult;
import org.apache.kafka.clients.admin.DescribeConfigsOptions;
import org.apache.kafka.clients.admin.ListConsumerGroupOffsetsSpec;
import org.apache.kafka.clients.admin.ListTopicsOptions;
import org.apache.kafka.clients.admin.LogDirDescription;
import org.apache.kafka.clients.admin.MemberDescription;
import org.apache.kafka.clients.admin.NewPartitionReassignment;
import org.apache.kafka.clients.admin.NewPartitions;
import org.apache.kafka.clients.admin.NewTopic;
import org.apache.kafka.clients.admin.OffsetSpec;
import org.apache.kafka.clients.admin.RecordsToDelete;
import org.apache.kafka.clients.admin.TopicDescription;
import org.apache.kafka.clients.admin.TopicListing;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.Node;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.TopicPartitionInfo;
import org.apache.kafka.common.acl.AclBindingFilter;
import org.apache.kafka.common.config.ConfigResource;
import org.apache.kafka.common.quota.ClientQuotaFilter;
import org.apache.kafka.common.serialization.StringDeserializer;
import org.apache.kafka.common.serialization.StringSerializer;

/**
 * The calls that kafbat's kafka-ui and AKHQ make of the admin client, and reading records in their
 * manner, and what is answered: a line for each fact, for test_user_interface.py.
 *
 *     BOOTSTRAP TOPIC NEW_TOPIC GROUP      TOPIC is read; NEW_TOPIC is made, changed and deleted,
 *                                          and GROUP is made by a reset, and deleted
 *
 * Sources: io.kafbat.ui.service.ReactiveAdminClient with ScrapedClusterState (its regular scrape)
 * and ConsumerGroupService; org.akhq.modules.AbstractKafkaWrapper.
 */
public class JavaInterfaces {
    private static final long DEADLINE_MS = 60_000;

    private final Admin admin;
    private final Map<String, Object> configs;
    private final String topic;
    private final String newTopic;
    private final String group;

    private JavaInterfaces(Admin admin, Map<String, Object> configs, String[] arguments) {
        this.admin = admin;
        this.configs = configs;
        this.topic = arguments[1];
        this.newTopic = arguments[2];
        this.group = arguments[3];
    }

    public static void main(String[] arguments) throws Exception {
        Map<String, Object> configs = Map.of("bootstrap.servers", arguments[0]);
        try (Admin admin = Admin.create(configs)) {
            JavaInterfaces calls = new JavaInterfaces(admin, configs, arguments);
            List<Integer> brokers = calls.cluster();
            calls.topics();
            calls.logDirs(brokers);
            calls.groups();
            calls.records();
            calls.changes(brokers);
        }
    }

    // ── What both ask when they start and again and again ──

    private List<Integer> cluster() throws Exception {
        DescribeClusterResult cluster = admin.describeCluster(
            new DescribeClusterOptions().includeAuthorizedOperations(false));
        List<Integer> brokers = cluster.nodes().get().stream().map(Node::id).sorted().toList();
        say("cluster", "id of", cluster.clusterId().get().length(), "brokers", brokers, "controller",
            brokers.contains(cluster.controller().get().id()), "operations",
            cluster.authorizedOperations().get());
        for (Node node : cluster.nodes().get()) {
            say("node", node.id(), node.host(), node.port(), node.rack(), node.isFenced());
        }
        answer("authorized operations", () -> new TreeSet<>(admin.describeCluster(
            new DescribeClusterOptions().includeAuthorizedOperations(true))
            .authorizedOperations().get()));
        answer("acls", () -> admin.describeAcls(AclBindingFilter.ANY).values().get());
        answer("quotas", () ->
            admin.describeClientQuotas(ClientQuotaFilter.all()).entities().get());
        var resources = brokers.stream().map(id ->
            new ConfigResource(ConfigResource.Type.BROKER, Integer.toString(id))).toList();
        for (Config config : admin.describeConfigs(resources).all().get().values()) {
            for (String name : List.of("delete.topic.enable", "inter.broker.protocol.version",
                    "auto.create.topics.enable", "num.partitions", "log.retention.hours")) {
                ConfigEntry entry = config.get(name);
                say("broker config", name, entry == null ? null : entry.value());
            }
            say("broker configs without a name or a source", config.entries().stream()
                .filter(entry -> entry.name() == null || entry.source() == null).toList());
        }
        return brokers;
    }

    private void topics() throws Exception {
        Collection<TopicListing> listings =
            admin.listTopics(new ListTopicsOptions().listInternal(true)).listings().get();
        List<String> names = listings.stream().filter(found -> !found.isInternal())
            .map(TopicListing::name).sorted().toList();
        say("topics", names);
        for (TopicDescription found : new TreeMap<>(admin.describeTopics(names).allTopicNames().get()).values()) {
            say("topic", found.name(), found.isInternal(), found.authorizedOperations());
            for (TopicPartitionInfo info : found.partitions()) {
                say("partition", info.partition(), info.leader() != null,
                    info.replicas().size(), info.isr().size(), info.elr(), info.lastKnownElr());
            }
        }
        ConfigResource resource = new ConfigResource(ConfigResource.Type.TOPIC, topic);
        DescribeConfigsOptions all =
            new DescribeConfigsOptions().includeSynonyms(true).includeDocumentation(true);
        for (Config config : admin.describeConfigs(List.of(resource), all).all().get().values()) {
            for (ConfigEntry entry : config.entries()) {
                say("config", entry.name(), entry.value(), entry.source(), entry.type(),
                    entry.isReadOnly(), entry.isSensitive(), entry.isDefault(),
                    entry.documentation() != null && !entry.documentation().isEmpty());
            }
        }
        List<TopicPartition> partitions = partitions();
        answer("earliest", () -> offsets(partitions, OffsetSpec.earliest()));
        answer("latest", () -> offsets(partitions, OffsetSpec.latest()));
        answer("of the newest record", () -> offsets(partitions, OffsetSpec.maxTimestamp()));
        answer("since 1970", () -> offsets(partitions, OffsetSpec.forTimestamp(0)));
        answer("since 2100", () -> offsets(partitions, OffsetSpec.forTimestamp(4102444800000L)));
        answer("producers", () -> map(
            admin.describeProducers(partitions).all().get(), state -> state.activeProducers().stream()
                .map(one -> one.lastSequence() + " " + one.currentTransactionStartOffset()).toList()));
        answer("no such topic", () -> admin.describeTopics(List.of("none")).allTopicNames().get());
        answer("configs of no topic", () -> admin.describeConfigs(
            List.of(new ConfigResource(ConfigResource.Type.TOPIC, "none")), all).all().get());
    }

    private void logDirs(List<Integer> brokers) throws Exception {
        var described = admin.describeLogDirs(brokers).allDescriptions().get();
        for (Map<String, LogDirDescription> dirs : described.values()) {
            for (LogDirDescription dir : dirs.values()) {
                say("directory", dir.error(), dir.totalBytes().isPresent(),
                    dir.usableBytes().isPresent());
                dir.replicaInfos().entrySet().stream()
                    .filter(one -> one.getKey().topic().equals(topic))
                    .map(one -> one.getKey() + " " + (one.getValue().size() > 0) + " "
                        + one.getValue().offsetLag() + " " + one.getValue().isFuture())
                    .sorted().forEach(line -> say("replica", line));
            }
        }
    }

    @SuppressWarnings("removal")
    private void groups() throws Exception {
        Collection<ConsumerGroupListing> listings = admin.listConsumerGroups().all().get();
        List<String> names = listings.stream().map(ConsumerGroupListing::groupId).sorted().toList();
        listings.stream().map(one -> one.groupId() + " " + one.isSimpleConsumerGroup() + " "
            + one.state() + " " + one.groupState() + " " + one.type()).sorted()
            .forEach(line -> say("listed", line));
        for (ConsumerGroupDescription found :
                new TreeMap<>(admin.describeConsumerGroups(names).all().get()).values()) {
            say("group", found.groupId(), found.isSimpleConsumerGroup(), found.partitionAssignor(),
                found.type(), found.state(), found.groupState(), found.coordinator() != null,
                found.authorizedOperations());
            for (MemberDescription member : found.members()) {
                say("member", member.clientId(), member.host(), member.groupInstanceId(),
                    new TreeSet<>(member.assignment().topicPartitions().stream()
                        .map(Object::toString).toList()));
            }
        }
        var everything = names.stream().collect(Collectors.toMap(name -> name,
            name -> new ListConsumerGroupOffsetsSpec().topicPartitions(null)));
        var only = names.stream().collect(Collectors.toMap(name -> name,
            name -> new ListConsumerGroupOffsetsSpec().topicPartitions(partitions())));
        lag("offsets", admin.listConsumerGroupOffsets(everything).all().get());
        lag("offsets of the topic", admin.listConsumerGroupOffsets(only).all().get());
        answer("no such group", () -> admin.describeConsumerGroups(List.of("none")).all().get());
        answer("offsets of no group", () ->
            admin.listConsumerGroupOffsets("none").partitionsToOffsetAndMetadata().get());
    }

    private void lag(String what, Map<String, Map<TopicPartition, OffsetAndMetadata>> committed)
            throws Exception {
        Map<String, Long> ends = offsets(partitions(), OffsetSpec.latest());
        for (var of : new TreeMap<>(committed).entrySet()) {
            Map<String, OffsetAndMetadata> found = map(of.getValue(), offset -> offset);
            for (var one : found.entrySet()) {
                OffsetAndMetadata offset = one.getValue();
                say(what, of.getKey(), one.getKey(), offset, offset == null ? null
                    : ends.get(one.getKey()) - offset.offset());
            }
        }
    }

    // ── Records: newest first, and from a time ──

    private void records() {
        Map<String, Object> reader = new TreeMap<>(configs);
        reader.putAll(Map.of("auto.offset.reset", "earliest", "enable.auto.commit", false,
            "allow.auto.create.topics", false, "max.poll.records", 2));
        StringDeserializer strings = new StringDeserializer();
        try (var consumer = new KafkaConsumer<>(reader, strings, strings)) {
            List<TopicPartition> partitions = partitions();
            say("beginnings", strings(consumer.beginningOffsets(partitions)));
            var ends = consumer.endOffsets(partitions);
            say("ends", strings(ends));
            say("listed topic", consumer.partitionsFor(topic).size(),
                consumer.listTopics().containsKey(topic));
            say("since 1970", strings(consumer.offsetsForTimes(partitions.stream()
                .collect(Collectors.toMap(one -> one, one -> 0L)))));
            for (TopicPartition partition : partitions) {
                consumer.assign(List.of(partition));
                consumer.seek(partition, ends.get(partition) - 2);
                long deadline = System.currentTimeMillis() + DEADLINE_MS;
                int left = 2;
                while (left > 0 && System.currentTimeMillis() < deadline) {
                    for (ConsumerRecord<String, String> record : consumer.poll(Duration.ofMillis(200))) {
                        say("record", partition, record.offset(), record.key(), record.value(),
                            record.timestampType(), record.headers().toArray().length,
                            record.serializedKeySize(), record.serializedValueSize());
                        left--;
                    }
                }
                say("then at", consumer.position(partition));
            }
        }
    }

    // ── What their buttons do ──

    private void changes(List<Integer> brokers) throws Exception {
        NewTopic made = new NewTopic(newTopic, Optional.of(2), Optional.empty())
            .configs(Map.of("cleanup.policy", "delete", "retention.ms", "1000000"));
        TopicPartition first = new TopicPartition(newTopic, 0);
        ConfigResource resource = new ConfigResource(ConfigResource.Type.TOPIC, newTopic);
        answer("create", () -> admin.createTopics(List.of(made)).all().get());
        answer("create again", () -> admin.createTopics(List.of(made)).all().get());
        answer("extend", () -> admin.createPartitions(
            Map.of(newTopic, NewPartitions.increaseTo(3))).all().get());
        answer("shrink", () -> admin.createPartitions(
            Map.of(newTopic, NewPartitions.increaseTo(1))).all().get());
        answer("alter", () -> admin.incrementalAlterConfigs(Map.of(resource, List.of(
            new AlterConfigOp(new ConfigEntry("retention.ms", ""), AlterConfigOp.OpType.DELETE),
            new AlterConfigOp(new ConfigEntry("max.message.bytes", "2000"),
                AlterConfigOp.OpType.SET)))).all().get());
        answer("altered", () -> altered(resource));
        ConfigResource broker =
            new ConfigResource(ConfigResource.Type.BROKER, brokers.get(0).toString());
        for (String name : List.of("num.partitions", "log.retention.ms")) {
            for (AlterConfigOp.OpType does :
                    List.of(AlterConfigOp.OpType.SET, AlterConfigOp.OpType.DELETE)) {
                answer(does + " of a broker " + name, () -> admin.incrementalAlterConfigs(Map.of(
                    broker, List.of(new AlterConfigOp(new ConfigEntry(name, "604800000"), does))))
                    .all().get());
            }
        }
        StringSerializer strings = new StringSerializer();
        try (var producer = new KafkaProducer<>(configs, strings, strings)) {
            for (int n = 0; n < 5; n++) {
                say("sent", producer.send(
                    new ProducerRecord<>(newTopic, 0, "key", "value " + n)).get().offset());
            }
        }
        answer("empty", () -> admin.deleteRecords(
            Map.of(first, RecordsToDelete.beforeOffset(-1))).all().get());
        answer("emptied", () -> offsets(List.of(first), OffsetSpec.earliest()));
        answer("where it is", () -> admin.alterPartitionReassignments(Map.of(first,
            Optional.of(new NewPartitionReassignment(admin.describeTopics(List.of(newTopic))
                .allTopicNames().get().get(newTopic).partitions().get(0).replicas().stream()
                .map(Node::id).toList())))).all().get());
        answer("reset", () -> admin.alterConsumerGroupOffsets(
            group, Map.of(new TopicPartition(topic, 0), new OffsetAndMetadata(2),
                new TopicPartition(topic, 1), new OffsetAndMetadata(1))).all().get());
        answer("was reset", () -> strings(
            admin.listConsumerGroupOffsets(group).partitionsToOffsetAndMetadata().get()));
        answer("forget", () -> admin.deleteConsumerGroupOffsets(
            group, Set.of(new TopicPartition(topic, 0))).all().get());
        answer("forgot", () -> strings(
            admin.listConsumerGroupOffsets(group).partitionsToOffsetAndMetadata().get()));
        answer("delete a group", () -> admin.deleteConsumerGroups(List.of(group)).all().get());
        answer("delete it again", () -> admin.deleteConsumerGroups(List.of(group)).all().get());
        answer("delete a live group", () ->
            admin.deleteConsumerGroups(List.of("ui-classic")).all().get());
        answer("delete", () -> admin.deleteTopics(List.of(newTopic)).all().get());
        answer("delete again", () -> admin.deleteTopics(List.of(newTopic)).all().get());
    }

    // ── Telling ──

    private List<TopicPartition> partitions() {
        return List.of(new TopicPartition(topic, 0), new TopicPartition(topic, 1),
            new TopicPartition(topic, 2));
    }

    private Map<String, Long> offsets(List<TopicPartition> partitions, OffsetSpec spec)
            throws Exception {
        var wanted = partitions.stream().collect(Collectors.toMap(one -> one, one -> spec));
        return map(admin.listOffsets(wanted).all().get(), found -> found.offset());
    }

    private static <K, V, W> Map<String, W> map(Map<K, V> from, Function<V, W> to) {
        Map<String, W> made = new TreeMap<>();
        from.forEach((key, value) -> made.put(key.toString(), to.apply(value)));
        return made;
    }

    private static <K, V> Map<String, String> strings(Map<K, V> from) {
        return map(from, value -> String.valueOf(value).replaceAll("timestamp=\\d+, ", ""));
    }

    /** The configs of a topic once they were altered: a broker of Kafka answers before it knows. */
    private List<String> altered(ConfigResource resource) throws Exception {
        long deadline = System.currentTimeMillis() + DEADLINE_MS;
        while (true) {
            List<String> found = admin.describeConfigs(List.of(resource)).all().get().get(resource)
                .entries().stream()
                .filter(one -> one.source() == ConfigEntry.ConfigSource.DYNAMIC_TOPIC_CONFIG)
                .map(one -> one.name() + "=" + one.value()).sorted().toList();
            if (found.contains("max.message.bytes=2000") || System.currentTimeMillis() > deadline) {
                return found;
            }
            Thread.sleep(100);
        }
    }

    private static void answer(String what, Callable<?> call) throws Exception {
        try {
            say(what, call.call());
        } catch (ExecutionException error) {
            say(what, error.getCause().getClass().getSimpleName(), error.getCause().getMessage());
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
