// redlock.js - node-redlock on one server, in the scenarios of bench/peers.
// SPDX-License-Identifier: Apache-2.0
'use strict';
const Redlock = require('redlock');
const main = require('./peer.js');

const LEASE_MS = 30000;

main('node-redlock', 'redlock', (redis, name) => {
  // By default it gives up after ten tries; -1 has it wait without limit, in its own pauses of 200 ms, give or take 100.
  const redlock = new Redlock([redis], { retryCount: -1 });
  let held;
  return {
    async lock() {
      held = await redlock.lock(name, LEASE_MS);
    },
    unlock: () => held.unlock(),
  };
});
