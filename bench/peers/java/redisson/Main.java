// Main.java - Redisson's RLock in the scenarios of bench/peers.
// SPDX-License-Identifier: Apache-2.0
import org.redisson.Redisson;
import org.redisson.api.RedissonClient;
import org.redisson.config.Config;

/** usage: Main PORT pair|many|hot SECONDS */
final class Main {
    public static void main(String[] args) throws InterruptedException {
        Peer.run("redisson", Redisson.class, args[1], Integer.parseInt(args[2]), () -> {
            Config config = new Config();
            config.useSingleServer().setAddress("redis://127.0.0.1:" + args[0]);
            RedissonClient client = Redisson.create(config);
            return name -> client.getLock("redisson:" + name);
        });
        Runtime.getRuntime().halt(0); // the clients' threads would go on
    }
}
