-- string_renew.lua - extends one hold of a lock whose key is a string; never creates, never shortens.
-- KEYS  lock
-- ARGV  owner, hold id, lease ms; more, for hashes, is not looked at
-- Answers 1: it lasts at least that long; 0: not this hold's.
local held = redis.pcall('get', KEYS[1])
if type(held) == 'table' then
    return held
end
if held ~= ARGV[1] .. ':' .. ARGV[2] then
    return 0
end
-- A key without expiry, after somebody's PERSIST, gets one again.
if redis.call('pttl', KEYS[1]) < tonumber(ARGV[3]) then
    redis.call('pexpire', KEYS[1], ARGV[3])
end
return 1
