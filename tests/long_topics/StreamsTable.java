import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.util.Map;
import java.util.Properties;
import org.apache.kafka.common.serialization.Serdes;
import org.apache.kafka.common.utils.Bytes;
import org.apache.kafka.streams.KafkaStreams;
import org.apache.kafka.streams.KeyValue;
import org.apache.kafka.streams.StoreQueryParameters;
import org.apache.kafka.streams.StreamsBuilder;
import org.apache.kafka.streams.StreamsConfig;
import org.apache.kafka.streams.errors.InvalidStateStoreException;
import org.apache.kafka.streams.kstream.Materialized;
import org.apache.kafka.streams.state.KeyValueIterator;
import org.apache.kafka.streams.state.KeyValueStore;
import org.apache.kafka.streams.state.QueryableStoreTypes;
import org.apache.kafka.streams.state.ReadOnlyKeyValueStore;

/**
 * A table of the newest value of each key, with a changelog: the value "-" removes a key.
 *
 *     BOOTSTRAP APPLICATION TOPIC STATE_DIRECTORY NAME=VALUE…     configs of the changelog's topic
 *
 * Each line of standard input is answered with the table, as lines KEY VALUE, and a line ".";
 * where the table is not there, with a line "!".  It ends when its standard input ends.
 */
public class StreamsTable {
    private static final String STORE = "latest";

    public static void main(String[] arguments) throws Exception {
        Properties configs = new Properties();
        configs.put(StreamsConfig.BOOTSTRAP_SERVERS_CONFIG, arguments[0]);
        configs.put(StreamsConfig.APPLICATION_ID_CONFIG, arguments[1]);
        configs.put(StreamsConfig.STATE_DIR_CONFIG, arguments[3]);
        configs.put(StreamsConfig.COMMIT_INTERVAL_MS_CONFIG, "1000");
        configs.put(StreamsConfig.DEFAULT_KEY_SERDE_CLASS_CONFIG, Serdes.String().getClass());
        configs.put(StreamsConfig.DEFAULT_VALUE_SERDE_CLASS_CONFIG, Serdes.String().getClass());
        configs.put("session.timeout.ms", "6000");
        configs.put("auto.offset.reset", "earliest");
        Map<String, String> changelog = new java.util.HashMap<>();
        for (int i = 4; i < arguments.length; i++) {
            String[] pair = arguments[i].split("=", 2);
            changelog.put(pair[0], pair[1]);
        }
        StreamsBuilder builder = new StreamsBuilder();
        builder.<String, String>stream(arguments[2]).groupByKey().aggregate(
            () -> "",
            (key, value, before) -> value.equals("-") ? null : value,
            Materialized.<String, String, KeyValueStore<Bytes, byte[]>>as(STORE)
                .withKeySerde(Serdes.String())
                .withValueSerde(Serdes.String())
                .withCachingDisabled()
                .withLoggingEnabled(changelog));
        try (KafkaStreams streams = new KafkaStreams(builder.build(), configs)) {
            streams.start();
            BufferedReader lines = new BufferedReader(new InputStreamReader(System.in));
            while (lines.readLine() != null) {
                System.out.print(table(streams));
                System.out.flush();
            }
        }
    }

    private static String table(KafkaStreams streams) {
        if (streams.state() != KafkaStreams.State.RUNNING) {
            return "!\n";
        }
        StringBuilder table = new StringBuilder();
        try {
            ReadOnlyKeyValueStore<String, String> store = streams.store(
                StoreQueryParameters.fromNameAndType(STORE, QueryableStoreTypes.keyValueStore()));
            try (KeyValueIterator<String, String> all = store.all()) {
                while (all.hasNext()) {
                    KeyValue<String, String> entry = all.next();
                    table.append(entry.key).append(' ').append(entry.value).append('\n');
                }
            }
        } catch (InvalidStateStoreException moving) {
            return "!\n";
        }
        return table.append(".\n").toString();
    }
}
