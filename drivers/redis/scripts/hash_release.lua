-- hash_release.lua - frees one hold of a lock whose key is a hash, or writes the level that stays.
-- KEYS  lock
-- ARGV  owner, hold id, level that stays, channel
-- Answers 1: freed; 0: the level was written; nil: not this hold's.
local f = redis.pcall('hmget', KEYS[1], ARGV[1], ARGV[1] .. ':h')
if f.err then
    return f
end
if not f[1] or f[2] ~= ARGV[2] or redis.call('hlen', KEYS[1]) ~= 2 then
    return false
end
if tonumber(ARGV[3]) > 0 then
    -- Only the first write of a script is refused when memory is full: this one passes and changes nothing.
    local left = redis.call('pttl', KEYS[1])
    if left > 0 then
        redis.call('pexpire', KEYS[1], left)
    end
    local shown = redis.pcall('hset', KEYS[1], ARGV[1], ARGV[3])
    if type(shown) == 'table' and not string.find(shown.err, 'OOM', 1, true) then
        return shown
    end
    return 0
end
redis.call('del', KEYS[1])
-- A user that may not publish has freed it all the same.
redis.pcall('publish', ARGV[4], '0')
return 1
