"""A program that holds redis-py's locks and does what its input says: see README.md."""

import sys
import threading
import time
from queue import SimpleQueue
from urllib.parse import quote, unquote

import redis
from redis.exceptions import RedisError

RETRY = 0.02


class Commands:
    """What one worker holds: redis-py's lock is an object, its value is drawn when it is taken."""

    def __init__(self, client):
        self.client = client
        self.locks = {}

    def acquire(self, name, lease, wait=None):
        lock = self.client.lock(name, timeout=int(lease) / 1000, sleep=RETRY, thread_local=False)
        if wait is None:
            taken = lock.acquire(blocking=False)
        else:
            taken = lock.acquire(blocking=True, blocking_timeout=int(wait) / 1000)
        if taken:
            self.locks[name] = lock
        return [str(taken).lower()]

    def release(self, name):
        self.locks[name].release()
        return []

    def extend(self, name, lease):
        self.locks[name].extend(int(lease) / 1000, replace_ttl=True)
        return []


OUTPUT = threading.Lock()


def answer(number, start, outcome, rest):
    end, wall = time.monotonic_ns(), time.time_ns() // 1_000_000
    with OUTPUT:
        print(number, start, end, wall, outcome, *rest, flush=True)


def run(number, work):
    start = time.monotonic_ns()
    try:
        words = work()
    except (RedisError, KeyError, TypeError, ValueError, AttributeError) as error:
        kind = type(error)
        message = " ".join(str(error).split())
        answer(number, start, "err", [f"{kind.__module__}.{kind.__qualname__}: {message}"])
    else:
        answer(number, start, "ok", [quote(word, safe="") for word in words])


def serve(client, requests):
    commands = Commands(client)
    while True:
        number, command, words = requests.get()
        run(number, lambda: getattr(commands, command)(*words))


def main(url):
    client = redis.Redis.from_url(url)

    def greeting():
        client.ping()
        return [redis.__version__]

    run(0, greeting)
    workers = {}
    for line in sys.stdin:
        number, worker, command, *words = line.split()
        if command == "clock":
            run(number, list)
            continue
        if worker not in workers:
            workers[worker] = SimpleQueue()
            arguments = (client, workers[worker])
            threading.Thread(target=serve, args=arguments, daemon=True).start()
        workers[worker].put((number, command, [unquote(word) for word in words]))


main(sys.argv[1])
