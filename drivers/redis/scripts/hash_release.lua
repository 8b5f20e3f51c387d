-- hash_release.lua - frees one hold of a lock whose key is a hash, or writes the level that stays.
-- KEYS  lock
-- ARGV  owner, hold id, level that stays, channel, list of those who wait for a fair lock
-- Answers 1: freed; 0: the level was written; nil: not this hold's, or no longer.
-- include hash_free.lua
-- include hash_hold.lua
local there = has_hold(KEYS[1], ARGV[1], ARGV[2], ARGV[4], ARGV[5])
if there ~= true then
    return there
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
return free(KEYS[1], ARGV[1], ARGV[4], ARGV[5])
