// Peer.java - the scenarios of bench/peers for libraries of Java: threads of one client, in `hot` and mixed each with its own.
// SPDX-License-Identifier: Apache-2.0
import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStreamReader;
import java.io.UncheckedIOException;
import java.net.Socket;
import java.util.Arrays;
import java.util.Locale;
import java.util.concurrent.CyclicBarrier;
import java.util.concurrent.atomic.AtomicLong;
import java.util.concurrent.locks.Lock;
import java.util.concurrent.locks.LockSupport;
import java.util.function.Function;
import java.util.function.Supplier;

/** What a program gives: a way to connect a client, which opens locks by their names. */
final class Peer {
    /** What is done in the first seconds is not counted: Java compiles while it runs, and needs longer than the others' one. */
    private static final long WARM_NS = 10_000_000_000L;
    private static final int TASKS = 64;
    /** Of `hot`, and of a mixed scenario on both sides together. */
    private static final int CLIENTS = 8;

    /** Of a mixed scenario: how many of its clients are here, and how long is not counted, which is the others' too. */
    private static final int MIXED_CLIENTS = 2;
    private static final long MIXED_WARM_NS = 1_000_000_000L;

    private final String name;
    private final int port;
    private final long lengthNs;
    private final Supplier<Function<String, Lock>> connect;

    private Peer(String name, int port, int seconds, Supplier<Function<String, Lock>> connect) {
        this.name = name;
        this.port = port;
        this.lengthNs = seconds * 1_000_000_000L;
        this.connect = connect;
    }

    /** Runs the scenario of PORT SCENARIO SECONDS, and prints its line, with the version of the archive that has `library`. */
    static void run(String name, Class<?> library, String[] args, Supplier<Function<String, Lock>> connect) throws Exception {
        Peer peer = new Peer(name, Integer.parseInt(args[0]), Integer.parseInt(args[2]), connect);
        String figures = switch (args[1]) {
            case "pair" -> peer.pair();
            case "many" -> peer.many();
            case "hot" -> peer.hot();
            case "mixed-redisson" -> peer.mixed();
            default -> throw new IllegalArgumentException("no scenario " + args[1]);
        };
        System.out.printf("%s %s %s %s%n", name, library.getPackage().getImplementationVersion(), args[1], figures);
    }

    /** The nanoseconds of each pair that began after begin and ended before end. */
    private static long[] pairs(Lock lock, long begin, long end) {
        long[] took = new long[1 << 16];
        int n = 0;
        for (long now = System.nanoTime(); now < end; ) {
            long before = now;
            lock.lock();
            lock.unlock();
            now = System.nanoTime();
            if (before >= begin && now < end) {
                took = n < took.length ? took : Arrays.copyOf(took, 2 * n);
                took[n++] = now - before;
            }
        }
        return Arrays.copyOf(took, n);
    }

    /** A thread whose failure ends the program. */
    private static Thread start(Runnable work) {
        Thread thread = new Thread(work);
        thread.setUncaughtExceptionHandler((failed, why) -> {
            why.printStackTrace();
            Runtime.getRuntime().halt(1);
        });
        thread.start();
        return thread;
    }

    private String pair() {
        Lock lock = connect.get().apply("pair/0");
        long begin = System.nanoTime() + WARM_NS;
        long[] took = pairs(lock, begin, begin + lengthNs);
        Arrays.sort(took);
        return String.format(Locale.ROOT, "%.1f", took[took.length / 2] / 1e3);
    }

    private String many() throws InterruptedException {
        Function<String, Lock> client = connect.get();
        long begin = System.nanoTime() + WARM_NS;
        long[] counts = new long[TASKS];
        Thread[] threads = new Thread[TASKS];
        for (int i = 0; i < TASKS; i++) {
            int number = i;
            Lock lock = client.apply("many/" + i);
            threads[i] = start(() -> counts[number] = pairs(lock, begin, begin + lengthNs).length);
        }
        for (Thread thread : threads) {
            thread.join();
        }
        return String.format(Locale.ROOT, "%.0f", Arrays.stream(counts).sum() * 1e9 / lengthNs);
    }

    private String hot() throws InterruptedException {
        double[] holds = new double[CLIENTS];
        long[] longest = new long[CLIENTS];
        CyclicBarrier ready = new CyclicBarrier(CLIENTS);
        Thread[] threads = new Thread[CLIENTS];
        for (int i = 0; i < CLIENTS; i++) {
            int number = i;
            Lock lock = connect.get().apply("hot/0");
            threads[i] = start(() -> contend(lock, WARM_NS, () -> await(ready), () -> { }, number, holds, longest));
        }
        for (Thread thread : threads) {
            thread.join();
        }
        double sum = Arrays.stream(holds).sum(), squares = Arrays.stream(holds).map(count -> count * count).sum();
        return String.format(Locale.ROOT, "%.0f %.1f %.3f", sum * 1e9 / lengthNs, Arrays.stream(longest).max().getAsLong() / 1e6,
            squares > 0 ? sum * sum / (CLIENTS * squares) : 0);
    }

    /** Two clients beside those of libdlock. */
    private String mixed() throws IOException, InterruptedException {
        double[] holds = new double[MIXED_CLIENTS];
        long[] longest = new long[MIXED_CLIENTS];
        AtomicLong violations = new AtomicLong();
        Thread[] threads = new Thread[MIXED_CLIENTS];
        for (int i = 0; i < MIXED_CLIENTS; i++) {
            int number = i;
            Lock lock = connect.get().apply("mixed/0");
            Counters counters = new Counters();
            threads[i] = start(() -> contend(lock, MIXED_WARM_NS, counters::awaitAll, () -> counters.hold(violations), number, holds,
                longest));
        }
        for (Thread thread : threads) {
            thread.join();
        }
        return String.format(Locale.ROOT, "%.0f %.2f %.1f %d", Arrays.stream(holds).sum() * 1e9 / lengthNs,
            Arrays.stream(holds).min().getAsDouble() * 1e9 / lengthNs, Arrays.stream(longest).max().getAsLong() / 1e6,
            violations.get());
    }

    /** What the clients of both libraries count on the server, by a connection of their own: who is ready, and who holds. */
    private final class Counters {
        private final Socket socket = new Socket("127.0.0.1", port);
        private final BufferedReader replies = new BufferedReader(new InputStreamReader(socket.getInputStream()));

        Counters() throws IOException {
            socket.setTcpNoDelay(true);
        }

        private long add(String what, int by) {
            try {
                socket.getOutputStream().write(("INCRBY " + name + ":mixed/" + what + " " + by + "\r\n").getBytes());
                return Long.parseLong(replies.readLine().substring(1));
            } catch (IOException e) {
                throw new UncheckedIOException(e);
            }
        }

        void awaitAll() {
            for (long n = add("ready", 1); n < CLIENTS; n = add("ready", 0)) {
                LockSupport.parkNanos(10_000_000);
            }
        }

        void hold(AtomicLong violations) {
            if (add("inside", 1) != 1) {
                violations.incrementAndGet();
            }
            LockSupport.parkNanos(1_000_000);
            add("inside", -1);
        }
    }

    private static void await(CyclicBarrier ready) {
        try {
            ready.await();
        } catch (Exception e) {
            throw new IllegalStateException(e);
        }
    }

    /** One client, which does `hold` while it holds. */
    private void contend(Lock lock, long warmNs, Runnable ready, Runnable hold, int number, double[] holds, long[] longest) {
        lock.lock();
        lock.unlock();
        ready.run();
        long now = System.nanoTime(), begin = now + warmNs, end = begin + lengthNs;
        while (now < end) {
            long asked = now;
            lock.lock();
            long got = System.nanoTime();
            hold.run();
            lock.unlock();
            now = System.nanoTime();
            if (got >= begin) {
                holds[number] += got < end ? 1 : 0;
                longest[number] = Math.max(longest[number], got - asked);
            }
        }
    }
}
