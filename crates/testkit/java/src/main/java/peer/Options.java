package peer;

import java.net.URI;
import java.util.ArrayList;
import java.util.List;
import org.redisson.Redisson;
import org.redisson.api.RedissonClient;
import org.redisson.client.codec.StringCodec;
import org.redisson.config.BaseConfig;
import org.redisson.config.Config;

/** {@code [--watchdog MS] [--fair-wait MS] [--log LEVEL] URL}, or {@code --cluster URL…}. */
record Options(List<URI> servers, boolean cluster, Long watchdogMillis, Long fairWaitMillis) {
    static Options parse(String[] arguments) {
        List<URI> servers = new ArrayList<>();
        boolean cluster = false;
        Long watchdog = null;
        Long fairWait = null;
        String log = "off";
        for (int i = 0; i < arguments.length; i++) {
            switch (arguments[i]) {
                case "--cluster" -> cluster = true;
                case "--watchdog" -> watchdog = Long.parseLong(value(arguments, ++i));
                case "--fair-wait" -> fairWait = Long.parseLong(value(arguments, ++i));
                case "--log" -> log = value(arguments, ++i);
                default -> servers.add(URI.create(arguments[i]));
            }
        }
        if (servers.isEmpty() || !cluster && servers.size() > 1) {
            throw new IllegalArgumentException("one URL, or --cluster and at least one");
        }
        // Read when the first logger is created: before anything of Redisson is touched.
        System.setProperty("org.slf4j.simpleLogger.defaultLogLevel", log);
        System.setProperty("org.slf4j.simpleLogger.showDateTime", "true");
        return new Options(servers, cluster, watchdog, fairWait);
    }

    RedissonClient connect() throws Exception {
        Config config = new Config().setCodec(StringCodec.INSTANCE);
        if (watchdogMillis != null) {
            config.setLockWatchdogTimeout(watchdogMillis);
        }
        if (fairWaitMillis != null) {
            Newer.call(config, "setFairLockWaitTimeout", fairWaitMillis);
        }
        // Few connections to begin with: starting quickly matters here, the first burst does not.
        if (cluster) {
            // A waiter that a failover has cut off listens again after the next scan.
            var servers = config.useClusterServers()
                    .setScanInterval(500)
                    .setMasterConnectionMinimumIdleSize(1)
                    .setSlaveConnectionMinimumIdleSize(1);
            this.servers.forEach(server -> servers.addNodeAddress(address(server)));
            authenticate(servers);
        } else {
            URI server = servers.get(0);
            var single = config.useSingleServer()
                    .setConnectionMinimumIdleSize(2)
                    .setAddress(address(server))
                    .setDatabase(database(server));
            authenticate(single);
        }
        return Redisson.create(config);
    }

    private static String value(String[] arguments, int index) {
        if (index == arguments.length) {
            throw new IllegalArgumentException(arguments[index - 1] + " needs a value");
        }
        return arguments[index];
    }

    private static String address(URI server) {
        return server.getScheme() + "://" + server.getHost() + ":" + server.getPort();
    }

    private static int database(URI server) {
        String path = server.getPath().replaceFirst("^/", "");
        return path.isEmpty() ? 0 : Integer.parseInt(path);
    }

    /** Apart from the address, which the oldest version would log. */
    private void authenticate(BaseConfig<?> config) {
        String credentials = servers.get(0).getRawUserInfo();
        if (credentials == null) {
            return;
        }
        int colon = credentials.indexOf(':');
        String user = Words.decode(credentials.substring(0, Math.max(colon, 0)));
        if (!user.isEmpty()) {
            config.setUsername(user);
        }
        config.setPassword(Words.decode(credentials.substring(colon + 1)));
    }
}
