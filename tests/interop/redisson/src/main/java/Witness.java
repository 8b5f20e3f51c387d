// Witness.java - a real Redisson and redis-hash-reentrant on one lock: exclusion, counts, wake-ups, a counter.
// SPDX-License-Identifier: Apache-2.0
import java.io.BufferedReader;
import java.io.BufferedWriter;
import java.io.IOException;
import java.io.InputStreamReader;
import java.io.OutputStreamWriter;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Arrays;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.TimeUnit;
import java.util.function.BooleanSupplier;
import org.redisson.Redisson;
import org.redisson.api.RFencedLock;
import org.redisson.api.RLock;
import org.redisson.api.RedissonClient;
import org.redisson.api.redisnode.RedisNode;
import org.redisson.api.redisnode.RedisNodes;
import org.redisson.config.Config;

/** usage: Witness HOLDER CONFIG REDIS_URL FILE COUNT */
public final class Witness {
    private static final String NAME = "shared";
    private static final int HANDOFFS = 100;
    private static final long LEASE_MS = 30000;

    /** The library under test: tests/interop/holder.c. */
    private static final class Holder {
        private final Process process;
        private final BufferedWriter commands;
        private final BufferedReader answers;

        Holder(String program, String config) throws IOException {
            process = new ProcessBuilder(program, config).redirectError(ProcessBuilder.Redirect.INHERIT).start();
            commands = new BufferedWriter(new OutputStreamWriter(process.getOutputStream()));
            answers = new BufferedReader(new InputStreamReader(process.getInputStream()));
            answer("DL_OK");
        }

        void say(String command) throws IOException {
            commands.write(command + "\n");
            commands.flush();
        }

        Map<String, String> answer(String expected) throws IOException {
            String line = answers.readLine();
            check(line != null && line.split(" ")[0].equals(expected), "the answer is " + line + ", expected " + expected);
            Map<String, String> values = new HashMap<>();
            for (String word : line.split(" ")) {
                String[] parts = word.split("=", 2);
                values.put(parts[0], parts.length > 1 ? parts[1] : "");
            }
            return values;
        }

        Map<String, String> ask(String expected, String command) throws IOException {
            say(command);
            return answer(expected);
        }

        void close() throws Exception {
            commands.close();
            check(process.waitFor() == 0, "the holder ends well");
        }
    }

    private static RedissonClient redisson;
    private static RLock lock;
    private static Holder holder;

    private static void check(boolean truth, String what) {
        if (!truth) {
            throw new AssertionError("not true: " + what);
        }
    }

    private static void await(BooleanSupplier truth, String what) throws InterruptedException {
        long until = System.nanoTime() + TimeUnit.SECONDS.toNanos(20);
        while (!truth.getAsBoolean()) {
            check(System.nanoTime() < until, "never: " + what);
            Thread.sleep(1);
        }
    }

    private static void report(String what, long[] tookNs) {
        Arrays.sort(tookNs);
        System.out.printf("%s: %d times, median %.2f ms, longest %.2f ms%n", what, tookNs.length,
            tookNs[tookNs.length / 2] / 1e6, tookNs[tookNs.length - 1] / 1e6);
    }

    /** How many scripts the server has run. */
    private static long scripts() {
        Map<String, String> stats =
            redisson.getRedisNodes(RedisNodes.SINGLE).getInstance().info(RedisNode.InfoSection.COMMANDSTATS);
        long calls = 0;
        for (String command : new String[] {"cmdstat_eval", "cmdstat_evalsha"}) {
            String line = stats.getOrDefault(command, "calls=0,");
            calls += Long.parseLong(line.substring("calls=".length(), line.indexOf(',')));
        }
        return calls;
    }

    private static void theirsExcludesUs() throws Exception {
        lock.lock();
        lock.lock();
        holder.ask("DL_EBUSY", "lock " + NAME + " 0");
        Map<String, String> seen = holder.ask("DL_OK", "inspect " + NAME);
        check(seen.get("held").equals("1") && seen.get("ours").equals("0"), "we see that another holds it");
        check(seen.get("holds").equals("2"), "we see its two levels");
        check(seen.get("owner").equals(redisson.getId() + ":" + Thread.currentThread().getId()), "we see who");
        holder.ask("DL_ENOTOWNER", "unlock " + NAME);
        check(lock.getHoldCount() == 2, "its count is untouched");
        lock.unlock();
        holder.ask("DL_EBUSY", "lock " + NAME + " 0");
        lock.unlock();
    }

    private static void oursExcludesThem() throws Exception {
        holder.ask("DL_OK", "lock " + NAME);
        holder.ask("DL_OK", "lock " + NAME);
        check(lock.isLocked() && !lock.isHeldByCurrentThread(), "it sees that another holds it");
        check(!lock.tryLock(), "it does not get our lock");
        long left = lock.remainTimeToLive();
        check(left > 0 && left <= LEASE_MS, "it sees our lease");
        try {
            lock.unlock();
            check(false, "it unlocked our lock");
        } catch (IllegalMonitorStateException expected) {
            // Not its own.
        }
        holder.ask("DL_OK", "unlock " + NAME);
        check(lock.isLocked(), "one level of two is left");
        holder.ask("DL_OK", "unlock " + NAME);
        check(!lock.isLocked(), "it sees that the lock is free");
    }

    /** We wait, it unlocks. Without a message we would look again after 1 s. */
    private static void theyWakeUs() throws Exception {
        long[] tookNs = new long[HANDOFFS];
        long extra = 0;
        for (int i = 0; i < HANDOFFS; i++) {
            lock.lock();
            long before = scripts();
            holder.say("lock " + NAME);
            // Once it has seen the lock busy, subscribed, and seen it busy again, it sleeps.
            await(() -> scripts() >= before + 2, "we wait");
            long releasedNs = System.nanoTime();
            lock.unlock();
            long atNs = Long.parseLong(holder.answer("DL_OK").get("at"));
            tookNs[i] = atNs - releasedNs;
            // Two tries before, the unlock, and one try.
            extra += scripts() - before - 4;
            holder.ask("DL_OK", "unlock " + NAME);
        }
        report("Redisson's unlock to our lock", tookNs);
        System.out.println("    scripts beyond those needed: " + extra);
        check(tookNs[HANDOFFS / 2] < 500_000_000L, "waits end by the message");
        check(extra <= HANDOFFS / 20, "no try but after a message");
    }

    /** It waits, we unlock. Without a message it would sleep until our lease ends, after 30 s. */
    private static void weWakeThem(RLock lock, String what) throws Exception {
        long[] tookNs = new long[HANDOFFS];
        for (int i = 0; i < HANDOFFS; i++) {
            holder.ask("DL_OK", "lock " + NAME);
            long before = scripts();
            CompletableFuture<Long> got = CompletableFuture.supplyAsync(() -> {
                lock.lock();
                long gotNs = System.nanoTime();
                lock.unlock();
                return gotNs;
            });
            await(() -> scripts() >= before + 2, "Redisson waits");
            long beganNs = Long.parseLong(holder.ask("DL_OK", "unlock " + NAME).get("began"));
            tookNs[i] = got.get(LEASE_MS / 2, TimeUnit.MILLISECONDS) - beganNs;
        }
        report("our unlock to Redisson's " + what, tookNs);
        check(tookNs[HANDOFFS - 1] < LEASE_MS / 2 * 1_000_000L, "waits end by the message");
    }

    /** The same key, and a counter of its own. */
    private static void aFencedLockShares() throws Exception {
        RFencedLock fenced = redisson.getFencedLock(NAME);
        holder.ask("DL_OK", "lock " + NAME);
        check(fenced.tryLockAndGetToken(1, TimeUnit.MILLISECONDS) == null, "a fenced lock does not get our lock");
        holder.ask("DL_OK", "unlock " + NAME);
        long token = fenced.lockAndGetToken();
        holder.ask("DL_EBUSY", "lock " + NAME + " 0");
        fenced.unlock();
        check(Long.parseLong(holder.ask("DL_OK", "lock " + NAME).get("token")) > token, "the tokens differ");
        holder.ask("DL_OK", "unlock " + NAME);
    }

    private static void checkOurs(RLock theirs, String what) throws Exception {
        holder.ask("DL_OK", "lock " + NAME);
        check(theirs.tryLock(), what + " takes what we hold");
        Map<String, String> seen = holder.ask("DL_OK", "inspect " + NAME);
        check(seen.get("held").equals("1") && seen.get("ours").equals("1"), "we are seen beside " + what);
    }

    /** Locks of other kinds look at fields of their own only, and ours is lost. */
    private static void theseTakeWhatWeHold() throws Exception {
        RLock read = redisson.getReadWriteLock(NAME).readLock();
        RLock write = redisson.getReadWriteLock(NAME).writeLock();
        for (RLock theirs : new RLock[] {write, redisson.getMultiLock(NAME, List.of((Object) "a", "b"))}) {
            String what = theirs.getClass().getSimpleName();
            checkOurs(theirs, what);
            holder.ask("DL_ELOST", "unlock " + NAME);
            holder.ask("DL_EFOREIGN", "lock " + NAME + " 0");
            theirs.unlock();
            check(!lock.isLocked(), "nothing is left when " + what + " leaves last");
            checkOurs(theirs, what);
            theirs.unlock();
            // A write lock leaves its mode behind, a group nothing to see.
            holder.ask(theirs == write ? "DL_ELOST" : "DL_OK", "unlock " + NAME);
            check(!lock.isLocked(), "nothing is left when we leave after " + what);
            checkOurs(theirs, what);
            holder.ask("DL_OK", "force " + NAME);
            holder.ask("DL_EFOREIGN", "force " + NAME);
            theirs.unlock();
            holder.ask("DL_ELOST", "unlock " + NAME);
        }
        checkOurs(read, "a read lock");
        read.unlock();
        holder.ask("DL_ELOST", "unlock " + NAME);
        System.out.println("locks of other kinds take what we hold, and leave nothing of it behind");
    }

    private static void bothCount(Path file, int count) throws Exception {
        Files.writeString(file, "0\n");
        long beganNs = System.nanoTime();
        holder.say("count " + NAME + " " + file + " " + count);
        for (int i = 0; i < count; i++) {
            lock.lock();
            long number = Long.parseLong(Files.readString(file).trim());
            Files.writeString(file, number + 1 + "\n");
            lock.unlock();
        }
        holder.answer("DL_OK");
        long number = Long.parseLong(Files.readString(file).trim());
        check(number == 2L * count, "both counted to " + number + ", expected " + 2L * count);
        System.out.printf("Redisson and we counted to %d, none lost, in %.1f s%n", number,
            (System.nanoTime() - beganNs) / 1e9);
    }

    public static void main(String[] args) throws Exception {
        Config config = new Config();
        config.useSingleServer().setAddress(args[2]);
        redisson = Redisson.create(config);
        lock = redisson.getLock(NAME);
        System.out.println("Redisson " + Redisson.class.getPackage().getImplementationVersion() + ", Java "
            + System.getProperty("java.version"));
        holder = new Holder(args[0], args[1]);
        theirsExcludesUs();
        oursExcludesThem();
        theyWakeUs();
        weWakeThem(lock, "lock");
        weWakeThem(redisson.getFairLock(NAME), "fair lock");
        aFencedLockShares();
        theseTakeWhatWeHold();
        bothCount(Path.of(args[3]), Integer.parseInt(args[4]));
        holder.close();
        redisson.getKeys().delete("redisson_lock_token:{" + NAME + "}");
        check(redisson.getKeys().countExists(NAME) == 0, "nothing is left behind");
        redisson.shutdown();
        System.out.println("all as it must be");
    }
}
