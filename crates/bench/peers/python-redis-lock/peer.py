"""python-redis-lock as a contender: `peer.py URL LEASE_MS`. The protocol: ../README.md."""

import platform
import sys
import threading
import time
from importlib.metadata import version

import redis
import redis_lock


class Crew:
    """Threads at work: the library blocks."""

    def __init__(self, peer, work, name, workers):
        if work not in ("own", "one"):
            raise ValueError(f"python-redis-lock has no lock for {work}")
        self.stopped = False
        self.failure = None
        self.counts = [0] * workers
        self.threads = []
        for number in range(workers):
            own = f"{name}:{number:06}" if work == "own" else name
            thread = threading.Thread(target=self.run, args=(peer, own, number), daemon=True)
            self.threads.append(thread)
        for thread in self.threads:
            thread.start()

    def run(self, peer, name, number):
        try:
            while not self.stopped:
                # The documentation makes a lock for each use of it.
                with peer.lock(name):
                    pass
                self.counts[number] += 1
        except Exception as failure:
            self.failure = failure

    def count(self):
        if self.failure is not None:
            raise self.failure
        return " ".join(map(str, [time.monotonic_ns(), *self.counts]))

    def stop(self):
        self.stopped = True
        for thread in self.threads:
            thread.join()
        return self.count()


class Peer:
    def __init__(self, url, lease):
        self.url = url
        self.lease = lease // 1000
        # A thread that waits has a connection to itself; the default is 100 of them. It waits in BLPOP for as
        # long as the lease; redis-py gives up an answer after 5 s by default.
        self.client = redis.Redis.from_url(url, max_connections=4096, socket_timeout=None)
        self.client.ping()
        self.crew = None
        self.held = None
        self.kept = []

    def lock(self, name, renewed=False):
        return redis_lock.Lock(self.client, name, expire=self.lease, auto_renewal=renewed)

    def obey(self, command, *words):
        if command == "start":
            self.crew = Crew(self, words[0], words[1], int(words[2]))
            return ""
        if command == "count":
            return self.crew.count()
        if command == "stop":
            return self.crew.stop()
        if command == "acquire":
            self.held = self.lock(words[0], renewed=True)
            self.held.acquire()
            return time.monotonic_ns()
        if command == "release":
            start = time.monotonic_ns()
            self.held.release()
            return start
        if command == "wait":
            lock = self.lock(words[0])
            lock.acquire()
            acquired = time.monotonic_ns()
            lock.release()
            return acquired
        if command == "keep":
            for number in range(int(words[1])):
                lock = self.lock(f"{words[0]}:{number:06}", renewed=True)
                lock.acquire()
                self.kept.append(lock)
            return len(self.kept)
        if command == "unkeep":
            for lock in self.kept:
                lock.release()
            self.kept.clear()
            return ""
        if command == "connect":
            start = time.monotonic_ns()
            client = redis.Redis.from_url(self.url)
            lock = redis_lock.Lock(client, words[0], expire=self.lease)
            lock.acquire()
            span = time.monotonic_ns() - start
            lock.release()
            client.close()
            return span
        raise ValueError(f"unknown command {command}")


def main():
    peer = Peer(sys.argv[1], int(sys.argv[2]))
    versions = f"{version('python-redis-lock')} (redis-py {version('redis')}, Python {platform.python_version()})"
    print("ready", versions, flush=True)
    for line in sys.stdin:
        try:
            print(f"ok {peer.obey(*line.split())}".strip(), flush=True)
        except Exception as failure:
            print(f"error {failure!r}", flush=True)
            sys.exit(1)


if __name__ == "__main__":
    main()
