// A program that holds node-redlock's locks and does what its input says: see README.md.
'use strict';

const readline = require('node:readline');
const Redis = require('ioredis');
const Redlock = require('redlock');

const RETRY = 20;

const clients = process.argv
  .slice(2)
  .map((url) => new Redis(url, { lazyConnect: true, maxRetriesPerRequest: 1 }));
clients.forEach((client) => client.on('error', () => {})); // Every request says so, too.

// How often it tries is a setting of the whole library.
function redlock(wait) {
  return new Redlock(clients, {
    retryCount: Math.ceil(wait / RETRY),
    retryDelay: RETRY,
    retryJitter: 0,
  });
}

// What one worker holds.
class Commands {
  locks = new Map();

  async acquire(name, lease, wait) {
    try {
      this.locks.set(name, await redlock(Number(wait ?? 0)).lock(name, Number(lease)));
      return ['true'];
    } catch (error) {
      if (error.name === 'LockError' && error.attempts > 0) return ['false'];
      throw error;
    }
  }

  async release(name) {
    await this.locks.get(name).unlock();
    return [];
  }

  async extend(name, lease) {
    this.locks.set(name, await this.locks.get(name).extend(Number(lease)));
    return [];
  }
}

const encode = (word) =>
  encodeURIComponent(word).replace(/[!'()*]/g, (c) => `%${c.charCodeAt(0).toString(16)}`);

async function run(number, work) {
  const start = process.hrtime.bigint();
  let words;
  try {
    words = ['ok', ...(await work()).map(encode)];
  } catch (error) {
    words = ['err', `${error.name}: ${String(error.message).split(/\s+/).join(' ')}`];
  }
  const end = process.hrtime.bigint();
  console.log([number, start, end, Date.now(), ...words].join(' '));
}

async function main() {
  await run(0, async () => {
    await Promise.all(clients.map((client) => client.connect()));
    return [require('redlock/package.json').version];
  });
  const workers = new Map();
  for await (const line of readline.createInterface({ input: process.stdin })) {
    const [number, worker, command, ...words] = line.split(' ');
    if (command === 'clock') {
      await run(number, async () => []);
      continue;
    }
    if (!workers.has(worker)) workers.set(worker, { commands: new Commands(), last: Promise.resolve() });
    const { commands, last } = workers.get(worker);
    const work = () => commands[command](...words.map(decodeURIComponent));
    workers.get(worker).last = last.then(() => run(number, work));
  }
  process.exit(0);
}

main();
