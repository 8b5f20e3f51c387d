// Peer.java - the scenarios of bench/peers for libraries of Java: threads of one client, in `hot` each with its own.
// SPDX-License-Identifier: Apache-2.0
import java.util.Arrays;
import java.util.Locale;
import java.util.concurrent.CyclicBarrier;
import java.util.concurrent.locks.Lock;
import java.util.function.Function;
import java.util.function.Supplier;

/** What a program gives: a way to connect a client, which opens locks by their names. */
final class Peer {
    /** What is done in the first seconds is not counted: Java compiles while it runs, and needs longer than the others' one. */
    private static final long WARM_NS = 10_000_000_000L;
    private static final int TASKS = 64;
    private static final int CLIENTS = 8;

    private final Supplier<Function<String, Lock>> connect;
    private final long lengthNs;

    private Peer(Supplier<Function<String, Lock>> connect, long lengthNs) {
        this.connect = connect;
        this.lengthNs = lengthNs;
    }

    /** Runs one scenario and prints its line. `version` is that of the archive that has the class `library`. */
    static void run(String name, Class<?> library, String scenario, int seconds, Supplier<Function<String, Lock>> connect)
            throws InterruptedException {
        Peer peer = new Peer(connect, seconds * 1_000_000_000L);
        String figures = switch (scenario) {
            case "pair" -> peer.pair();
            case "many" -> peer.many();
            case "hot" -> peer.hot();
            default -> throw new IllegalArgumentException("no scenario " + scenario);
        };
        System.out.printf("%s %s %s %s%n", name, library.getPackage().getImplementationVersion(), scenario, figures);
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
            threads[i] = start(() -> contend(lock, ready, number, holds, longest));
        }
        for (Thread thread : threads) {
            thread.join();
        }
        double sum = Arrays.stream(holds).sum(), squares = Arrays.stream(holds).map(count -> count * count).sum();
        return String.format(Locale.ROOT, "%.0f %.1f %.3f", sum * 1e9 / lengthNs, Arrays.stream(longest).max().getAsLong() / 1e6,
            squares > 0 ? sum * sum / (CLIENTS * squares) : 0);
    }

    private void contend(Lock lock, CyclicBarrier ready, int number, double[] holds, long[] longest) {
        lock.lock();
        lock.unlock();
        try {
            ready.await();
        } catch (Exception e) {
            throw new IllegalStateException(e);
        }
        long now = System.nanoTime(), begin = now + WARM_NS, end = begin + lengthNs;
        while (now < end) {
            long asked = now;
            lock.lock();
            long got = System.nanoTime();
            lock.unlock();
            now = System.nanoTime();
            if (got >= begin) {
                holds[number] += got < end ? 1 : 0;
                longest[number] = Math.max(longest[number], got - asked);
            }
        }
    }
}
