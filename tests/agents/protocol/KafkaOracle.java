import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.ByteBuffer;
import java.util.HexFormat;

import org.apache.kafka.common.message.ApiMessageType;
import org.apache.kafka.common.protocol.ApiMessage;
import org.apache.kafka.common.protocol.ByteBufferAccessor;
import org.apache.kafka.common.protocol.MessageUtil;

/**
 * Kafka's own readers and writers: each line of input, "key Request|Response version hex", is read
 * and written again. Prints the bytes it wrote and how many it left unread, or "refused" and why.
 */
public class KafkaOracle {
    public static void main(String[] arguments) throws Exception {
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in));
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            String[] words = line.split(" ", -1);
            short version = Short.parseShort(words[2]);
            ApiMessageType type = ApiMessageType.fromApiKey(Short.parseShort(words[0]));
            ApiMessage message = words[1].equals("Request") ? type.newRequest() : type.newResponse();
            ByteBuffer bytes = ByteBuffer.wrap(HexFormat.of().parseHex(words[3]));
            String answer;
            try {
                message.read(new ByteBufferAccessor(bytes), version);
                ByteBuffer written = MessageUtil.toByteBufferAccessor(message, version).buffer();
                byte[] copy = new byte[written.remaining()];
                written.get(copy);
                answer = HexFormat.of().formatHex(copy) + " " + bytes.remaining();
            } catch (RuntimeException error) {
                answer = "refused " + error;
            }
            System.out.println(answer.replace('\n', ' '));
        }
    }
}
