// Main.java - Redisson's RLock in the scenarios of bench/peers.
// SPDX-License-Identifier: Apache-2.0
import org.redisson.Redisson;
import org.redisson.api.RedissonClient;
import org.redisson.config.Config;

/** usage: Main PORT pair|many|hot|mixed-redisson SECONDS */
final class Main {
    /** In a mixed scenario. */
    private static final long LEASE_MS = 5_000;

    public static void main(String[] args) throws Exception {
        Peer.run("redisson", Redisson.class, args, () -> {
            Config config = new Config();
            config.useSingleServer().setAddress("redis://127.0.0.1:" + args[0]);
            if (args[1].startsWith("mixed-")) {
                config.setLockWatchdogTimeout(LEASE_MS);
            }
            RedissonClient client = Redisson.create(config);
            return name -> client.getLock("redisson:" + name);
        });
        Runtime.getRuntime().halt(0); // the clients' threads would go on
    }
}
