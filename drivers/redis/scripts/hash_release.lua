-- hash_release.lua - frees one hold of a lock whose key is a hash, or writes the level that stays; who has none no
-- longer waits for it. Or, by force, frees what was seen there.
-- KEYS  lock
-- ARGV  owner, hold id (or what inspect.lua showed of it and ""), level that stays, channel, list of those who
--       wait for a fair lock, queue, 1 if its process waits
-- Answers 1: freed, and what others have written into the hash stays; 2: freed for the first in line; 0: the level was
-- written; nil: not this hold's, or no longer; by force, an error when it is no lock.
-- include hash_free.lua
-- include hash_hold.lua
-- include hash_lock.lua
-- include queue.lua
local function reserve(key, uuid)
    redis.pcall('hset', key, uuid .. ':0', '1', uuid .. ':0:h', '0')
    if redis.pcall('pexpire', key, '200') ~= 1 then
        redis.pcall('del', key)
    end
end
local function give(key, channel)
    return hand_over(key, ARGV[6], channel, reserve)
end
if ARGV[2] == '' then
    local f = read_lock(KEYS[1])
    return f and (f.err and f or f.shown == ARGV[1] and free(KEYS[1], f[1], ARGV[4], ARGV[5], give))
end
local uuid = string.sub(ARGV[1], 1, 36)
local there = has_hold(KEYS[1], ARGV[1], ARGV[2], ARGV[4], ARGV[5])
if not there and ARGV[7] ~= '1' then
    local text = read_queue(ARGV[6])
    stand(ARGV[6], text, uuid)
    -- What was its own, or its turn, is the next one's.
    if has_hold(KEYS[1], uuid .. ':0', '0', ARGV[4], ARGV[5])
        or string.sub(text, FIRST, FIRST + 35) == uuid and redis.call('hlen', KEYS[1]) == 0 then
        free(KEYS[1], uuid .. ':0', ARGV[4], ARGV[5], give)
    end
end
if there ~= true then
    return there
end
if tonumber(ARGV[3]) > 0 then
    -- Only the first write of a script is refused when memory is full: this one passes and changes nothing.
    redis.pcall('hdel', KEYS[1], '')
    local shown = redis.pcall('hset', KEYS[1], ARGV[1], ARGV[3])
    if type(shown) == 'table' and not string.find(shown.err, 'OOM', 1, true) then
        return shown
    end
    return 0
end
return free(KEYS[1], ARGV[1], ARGV[4], ARGV[5], give)
