-- hash_renew.lua - extends one hold of a lock whose key is a hash; never creates, never shortens.
-- KEYS  lock
-- ARGV  owner, hold id, lease ms
-- Answers 1: it lasts at least that long; 0: not this hold's.
local f = redis.pcall('hmget', KEYS[1], ARGV[1], ARGV[1] .. ':h')
if f.err then
    return f
end
if not f[1] or f[2] ~= ARGV[2] or redis.call('hlen', KEYS[1]) ~= 2 then
    return 0
end
-- A key without expiry, after somebody's PERSIST, gets one again.
if redis.call('pttl', KEYS[1]) < tonumber(ARGV[3]) then
    redis.call('pexpire', KEYS[1], ARGV[3])
end
return 1
