-- hash_renew.lua - extends one hold of a lock whose key is a hash; never creates, never shortens.
-- KEYS  lock
-- ARGV  owner, hold id, lease ms, channel, list of those who wait for a fair lock
-- Answers 1: it lasts at least that long; 0: not this hold's, or no longer.
-- include hash_free.lua
-- include hash_hold.lua
local there = has_hold(KEYS[1], ARGV[1], ARGV[2], ARGV[4], ARGV[5])
if there ~= true then
    return there or 0
end
-- A key without expiry, after somebody's PERSIST, gets one again.
if redis.call('pttl', KEYS[1]) < tonumber(ARGV[3]) then
    redis.call('pexpire', KEYS[1], ARGV[3])
end
return 1
