// redis-semaphore.js - the Mutex of redis-semaphore in the scenarios of bench/peers.
// SPDX-License-Identifier: Apache-2.0
'use strict';
const { Mutex } = require('redis-semaphore');
const main = require('./peer.js');

main('redis-semaphore', 'redis-semaphore', (redis, name) => {
  // By default it gives up after ten seconds. It tries every 10 ms.
  const mutex = new Mutex(redis, name, { acquireTimeout: Infinity });
  return { lock: () => mutex.acquire(), unlock: () => mutex.release() };
});
