// Main.java - Spring Integration's RedisLockRegistry on Lettuce in the scenarios of bench/peers.
// SPDX-License-Identifier: Apache-2.0
import java.util.concurrent.locks.Lock;
import java.util.function.Function;
import org.springframework.data.redis.connection.lettuce.LettuceConnectionFactory;
import org.springframework.integration.redis.util.RedisLockRegistry;
import org.springframework.integration.redis.util.RedisLockRegistry.RedisLockType;

/** usage: Main PORT pair|many|hot SECONDS */
final class Main {
    private static Function<String, Lock> connect(int port, RedisLockType type) {
        LettuceConnectionFactory connections = new LettuceConnectionFactory("127.0.0.1", port);
        connections.afterPropertiesSet();
        connections.start();
        RedisLockRegistry registry = new RedisLockRegistry(connections, "spring");
        registry.setRedisLockType(type);
        return registry::obtain;
    }

    public static void main(String[] args) throws Exception {
        int port = Integer.parseInt(args[0]);
        Peer.run("spring", RedisLockRegistry.class, args, () -> connect(port, RedisLockType.SPIN_LOCK));
        if (args[1].equals("hot")) {
            // The default above polls; this is the other way, which its documentation prefers.
            Peer.run("spring-pubsub", RedisLockRegistry.class, args, () -> connect(port, RedisLockType.PUB_SUB_LOCK));
        }
        Runtime.getRuntime().halt(0); // the clients' threads would go on
    }
}
