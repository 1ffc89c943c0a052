import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.io.BufferedReader;
import java.io.ByteArrayInputStream;
import java.io.ByteArrayOutputStream;
import java.io.InputStream;
import java.io.InputStreamReader;
import java.io.OutputStream;
import java.io.PrintStream;
import java.lang.reflect.Field;
import java.lang.reflect.InvocationTargetException;
import java.net.URL;
import java.net.URLClassLoader;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import java.util.stream.StreamSupport;
import org.apache.kafka.common.utils.Exit;

/**
 * Kafka's command-line tools, many of them in one JVM, as kafka_tools.py asks for them.
 *
 * A line of JSON asks: {"id", "main", "args", "stdin"} runs the main method of a class; {"stop": id}
 * does to it what SIGTERM does (its shutdown hooks).  A line of JSON answers when it has ended:
 * {"id", "status", "out", "err"}; {"peek": id} answers with what it has printed so far.  Runs go on
 * side by side, each with streams of its own, which its threads inherit.
 *
 * A tool that exits would take the JVM along: Exit, which all of them use, throws instead, and
 * what the tool prints behind it, such as the stack trace of that exception, is dropped.  Tools
 * count in static fields, so each run has the classes of kafka-tools to itself.
 */
public class KafkaTools {
    private static final ObjectMapper JSON = new ObjectMapper();
    private static final PrintStream ANSWERS = System.out;
    private static final InheritableThreadLocal<Run> CURRENT = new InheritableThreadLocal<>();
    private static final Map<Integer, Run> RUNS = new ConcurrentHashMap<>();

    private static final class Exited extends Error {
        Exited(int status) {
            super("exit " + status, null, false, false);
        }
    }

    private static final class Run {
        final int id;
        final ByteArrayOutputStream out = new ByteArrayOutputStream();
        final ByteArrayOutputStream err = new ByteArrayOutputStream();
        final List<Runnable> hooks = new ArrayList<>();
        final ThreadGroup threads = new ThreadGroup("run");
        final InputStream in;
        Integer status;

        Run(int id, String stdin) {
            this.id = id;
            this.in = new ByteArrayInputStream(stdin.getBytes(StandardCharsets.UTF_8));
        }

        /** What a JVM does as it ends, whoever ends it; once. */
        void shutDown() {
            List<Runnable> due;
            synchronized (this) {
                due = new ArrayList<>(hooks);
                hooks.clear();
            }
            due.addAll(hooksOf(threads));
            due.forEach(Runnable::run);
        }

        synchronized void write(ByteArrayOutputStream to, byte[] bytes, int from, int length) {
            if (status == null) {
                to.write(bytes, from, length);
            }
        }

        synchronized void exit(int code) {
            if (status == null) {
                status = code;
            }
        }

        synchronized void said(ObjectNode answer) {
            answer.put("out", out.toString(StandardCharsets.UTF_8));
            answer.put("err", err.toString(StandardCharsets.UTF_8));
        }
    }

    private static final class Tools extends URLClassLoader {
        Tools() throws ClassNotFoundException {
            super(new URL[] {Class.forName("org.apache.kafka.tools.TopicCommand")
                .getProtectionDomain().getCodeSource().getLocation()});
        }

        @Override
        protected Class<?> loadClass(String name, boolean resolve) throws ClassNotFoundException {
            synchronized (getClassLoadingLock(name)) {
                Class<?> found = findLoadedClass(name);
                if (found == null && name.startsWith("org.apache.kafka.tools.")) {
                    try {
                        return findClass(name);
                    } catch (ClassNotFoundException inAnotherJar) {
                        return super.loadClass(name, resolve);
                    }
                }
                return found == null ? super.loadClass(name, resolve) : found;
            }
        }
    }

    private static final class Ours extends OutputStream {
        private final boolean error;

        Ours(boolean error) {
            this.error = error;
        }

        @Override
        public void write(int one) {
            write(new byte[] {(byte) one}, 0, 1);
        }

        @Override
        public void write(byte[] bytes, int from, int length) {
            Run run = CURRENT.get();
            if (run != null) {
                run.write(error ? run.err : run.out, bytes, from, length);
            }
        }
    }

    private static final class Theirs extends InputStream {
        @Override
        public int read() {
            byte[] one = new byte[1];
            return read(one, 0, 1) < 0 ? -1 : one[0] & 0xff;
        }

        @Override
        public int read(byte[] into, int from, int length) {
            Run run = CURRENT.get();
            try {
                return run == null ? -1 : run.in.read(into, from, length);
            } catch (java.io.IOException impossible) {
                throw new IllegalStateException(impossible);
            }
        }
    }

    public static void main(String[] unused) throws Exception {
        BufferedReader asked = new BufferedReader(
            new InputStreamReader(System.in, StandardCharsets.UTF_8));
        System.setIn(new Theirs());
        System.setOut(new PrintStream(new Ours(false), true, StandardCharsets.UTF_8));
        System.setErr(new PrintStream(new Ours(true), true, StandardCharsets.UTF_8));
        Exit.Procedure exit = (code, message) -> {
            Run run = CURRENT.get();
            if (run != null) {
                run.shutDown();
                run.exit(code);
            }
            throw new Exited(code);
        };
        Exit.setExitProcedure(exit);
        Exit.setHaltProcedure(exit);
        Exit.setShutdownHookAdder((name, hook) -> {
            Run run = CURRENT.get();
            if (run != null) {
                synchronized (run) {
                    run.hooks.add(hook);
                }
            }
        });
        for (String line = asked.readLine(); line != null; line = asked.readLine()) {
            JsonNode wanted = JSON.readTree(line);
            if (wanted.has("stop")) {
                stop(RUNS.get(wanted.get("stop").asInt()));
            } else if (wanted.has("peek")) {
                peek(RUNS.get(wanted.get("peek").asInt()));
            } else {
                start(wanted);
            }
        }
        Runtime.getRuntime().halt(0);
    }

    private static void start(JsonNode wanted) {
        Run run = new Run(wanted.get("id").asInt(), wanted.get("stdin").asText());
        String main = wanted.get("main").asText();
        String[] arguments = StreamSupport.stream(wanted.get("args").spliterator(), false)
            .map(JsonNode::asText).toArray(String[]::new);
        RUNS.put(run.id, run);
        Thread thread = new Thread(run.threads, () -> {
            CURRENT.set(run);
            run(run, main, arguments);
        }, "run-" + run.id);
        thread.setDaemon(true);
        thread.start();
    }

    private static void run(Run run, String main, String[] arguments) {
        try (Tools tools = new Tools()) {
            tools.loadClass(main).getMethod("main", String[].class).invoke(null, (Object) arguments);
            run.shutDown();
            run.exit(0);
        } catch (InvocationTargetException error) {
            if (!(error.getCause() instanceof Exited)) {
                error.getCause().printStackTrace();
                run.shutDown();
                run.exit(1);
            }
        } catch (ReflectiveOperationException | java.io.IOException error) {
            error.printStackTrace();
            run.exit(1);
        }
        ObjectNode answer = JSON.createObjectNode();
        answer.put("id", run.id);
        answer.put("status", run.status);
        run.said(answer);
        answer(answer);
    }

    /** What was given to Runtime itself by *threads*, and is the JVM's no more. */
    private static List<Runnable> hooksOf(ThreadGroup threads) {
        try {
            Field field = Class.forName("java.lang.ApplicationShutdownHooks")
                .getDeclaredField("hooks");
            field.setAccessible(true);
            List<Runnable> found = new ArrayList<>();
            for (Object hook : List.copyOf(((Map<?, ?>) field.get(null)).keySet())) {
                Thread thread = (Thread) hook;
                if (thread.getThreadGroup() == threads) {
                    Runtime.getRuntime().removeShutdownHook(thread);
                    found.add(thread);
                }
            }
            return found;
        } catch (ReflectiveOperationException error) {
            throw new IllegalStateException(error);
        }
    }

    private static void stop(Run run) {
        Thread thread = new Thread(() -> {
            CURRENT.set(run);
            run.shutDown();
        }, "stop-" + run.id);
        thread.setDaemon(true);
        thread.start();
    }

    private static void peek(Run run) {
        ObjectNode answer = JSON.createObjectNode();
        answer.put("peeked", run.id);
        run.said(answer);
        answer(answer);
    }

    private static void answer(ObjectNode answer) {
        synchronized (ANSWERS) {
            ANSWERS.println(answer);
            ANSWERS.flush();
        }
    }
}
