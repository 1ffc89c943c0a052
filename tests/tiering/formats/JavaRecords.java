import java.nio.ByteBuffer;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.HexFormat;
import org.apache.kafka.common.compress.Compression;
import org.apache.kafka.common.header.Header;
import org.apache.kafka.common.record.TimestampType;
import org.apache.kafka.common.record.internal.CompressionType;
import org.apache.kafka.common.record.internal.MemoryRecords;
import org.apache.kafka.common.record.internal.MemoryRecordsBuilder;
import org.apache.kafka.common.record.internal.Record;
import org.apache.kafka.common.record.internal.RecordBatch;

/** Reads a file of batches with Kafka's own classes; prints them; writes them again, by codec. */
public final class JavaRecords {
    public static void main(String[] args) throws Exception {
        MemoryRecords records =
                MemoryRecords.readableRecords(ByteBuffer.wrap(Files.readAllBytes(Path.of(args[0]))));
        for (RecordBatch batch : records.batches()) {
            batch.ensureValid();
            System.out.printf("batch %d %d %d%n", batch.baseOffset(), batch.nextOffset(),
                    batch.partitionLeaderEpoch());
            for (Record record : batch) {
                System.out.printf("%d %d %d %s %s", record.offset(), record.timestamp(),
                        batch.timestampType().id, hex(bytes(record.key())),
                        hex(bytes(record.value())));
                for (Header header : record.headers()) {
                    System.out.printf(" %s=%s", hex(header.key().getBytes("UTF-8")),
                            hex(header.value()));
                }
                System.out.println();
            }
        }
        for (CompressionType type : CompressionType.values()) {
            ByteBuffer out = ByteBuffer.allocate(64 << 20);
            MemoryRecordsBuilder builder = MemoryRecords.builder(
                    out, Compression.of(type).build(), TimestampType.CREATE_TIME, 0L);
            for (Record record : records.records()) {
                builder.append(record.timestamp(), record.key(), record.value(), record.headers());
            }
            ByteBuffer made = builder.build().buffer();
            byte[] bytes = new byte[made.remaining()];
            made.get(bytes);
            Files.write(Path.of(args[1], "codec-" + type.id), bytes);
        }
    }

    private static byte[] bytes(ByteBuffer buffer) {
        if (buffer == null) {
            return null;
        }
        byte[] bytes = new byte[buffer.remaining()];
        buffer.duplicate().get(bytes);
        return bytes;
    }

    private static String hex(byte[] bytes) {
        return bytes == null ? "null" : "x" + HexFormat.of().formatHex(bytes);
    }
}
