// peer.js - the scenarios of bench/peers for libraries of Node.js: tasks of one client, processes in `hot`.
// SPDX-License-Identifier: Apache-2.0
'use strict';
const { fork } = require('node:child_process');
const { once } = require('node:events');
const fs = require('node:fs');
const path = require('node:path');
const Redis = require('ioredis');

const WARM_MS = 1000; // what is done in the first second is not counted
const TASKS = 64;
const CLIENTS = 8;

const now = () => performance.now();
const sum = (numbers) => numbers.reduce((a, b) => a + b, 0);

function connect(port) {
  const redis = new Redis(port, '127.0.0.1');
  redis.on('error', (error) => {
    console.error(error.message);
    process.exit(1); // it would try for ever
  });
  return redis;
}

/** The milliseconds of each pair that began after begin and ended before end. */
async function pairs(lock, begin, end) {
  const took = [];
  for (let time = now(); time < end; ) {
    const before = time;
    await lock.lock();
    await lock.unlock();
    time = now();
    if (before >= begin && time < end) took.push(time - before);
  }
  return took;
}

async function runPair(open, port, ms) {
  const lock = open(connect(port), 'pair/0');
  const begin = now() + WARM_MS;
  const took = await pairs(lock, begin, begin + ms);
  took.sort((a, b) => a - b);
  return (took[took.length >> 1] * 1e3).toFixed(1);
}

async function runMany(open, port, ms) {
  const redis = connect(port);
  const locks = Array.from({ length: TASKS }, (_, i) => open(redis, `many/${i}`));
  const begin = now() + WARM_MS;
  const took = await Promise.all(locks.map((lock) => pairs(lock, begin, begin + ms)));
  return ((sum(took.map((each) => each.length)) / ms) * 1e3).toFixed(0);
}

/** One of the processes of `hot`: says that it is ready, waits for the word, and sends what it counted. */
async function contend(open, port, ms) {
  const lock = open(connect(port), 'hot/0');
  await lock.lock();
  await lock.unlock();
  process.send('ready');
  await once(process, 'message');
  let holds = 0;
  let longest = 0;
  let time = now();
  const begin = time + WARM_MS;
  const end = begin + ms;
  while (time < end) {
    const asked = time;
    await lock.lock();
    const got = now();
    await lock.unlock();
    time = now();
    if (got >= begin) {
      if (got < end) holds++;
      longest = Math.max(longest, got - asked);
    }
  }
  process.send({ holds, longest }, () => process.exit(0));
}

async function runHot(port, seconds) {
  const children = Array.from({ length: CLIENTS }, () => fork(process.argv[1], [port, 'contend', seconds]));
  for (const child of children) {
    child.once('exit', (code) => {
      if (code !== 0) process.exit(1); // the others end, for their channel to here is closed
    });
  }
  await Promise.all(children.map((child) => once(child, 'message')));
  const results = children.map((child) => once(child, 'message'));
  for (const child of children) child.send('go');
  const got = (await Promise.all(results)).map(([result]) => result);
  const holds = got.map((result) => result.holds);
  const squares = sum(holds.map((count) => count * count));
  const jain = squares > 0 ? sum(holds) ** 2 / (CLIENTS * squares) : 0;
  const longest = Math.max(...got.map((result) => result.longest));
  return `${(sum(holds) / seconds).toFixed(0)} ${longest.toFixed(1)} ${jain.toFixed(3)}`;
}

/** main of such a program: PORT SCENARIO SECONDS. open(redis, name) gives an object with async lock and unlock. */
module.exports = async function main(name, library, openLock) {
  const [port, scenario, seconds] = process.argv.slice(2);
  const open = (redis, lock) => openLock(redis, `${name}:${lock}`);
  let figures;
  if (scenario === 'pair') figures = await runPair(open, port, seconds * 1e3);
  else if (scenario === 'many') figures = await runMany(open, port, seconds * 1e3);
  else if (scenario === 'hot') figures = await runHot(port, seconds);
  else if (scenario === 'contend' && process.send) {
    process.once('disconnect', () => process.exit(1));
    return contend(open, port, seconds * 1e3);
  } else {
    console.error(`usage: ${path.basename(process.argv[1])} PORT pair|many|hot SECONDS`);
    process.exit(64);
  }
  const manifest = path.join(__dirname, 'node_modules', library, 'package.json');
  console.log(name, JSON.parse(fs.readFileSync(manifest)).version, scenario, figures);
  process.exit(0);
};
