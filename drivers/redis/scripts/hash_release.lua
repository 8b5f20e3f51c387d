-- hash_release.lua - frees one hold of a lock whose key is a hash, or writes the level that stays; who has none no
-- longer waits for it. Or, by force, frees what was seen there.
-- KEYS  lock
-- ARGV  owner, hold id (or what inspect.lua showed of it and ""), level that stays, channel, list of those who
--       wait for a fair lock, queue, 1 if its process waits
-- Answers 1: freed, and what others have written into the hash stays; 2: freed for the first in line; 0: the level was
-- written; nil: not this hold's, or no longer; by force, an error when it is no lock.
-- include hash_free.lua
-- include hash_hold.lua
local is_forced = ARGV[2] == ''
local there = not is_forced and has_hold(KEYS[1], ARGV[1], ARGV[2], ARGV[4], ARGV[5])
if there == true and tonumber(ARGV[3]) > 0 then
    -- Only the first write of a script is refused when memory is full: this one passes and changes nothing.
    redis.pcall('hdel', KEYS[1], '')
    local shown = redis.pcall('hset', KEYS[1], ARGV[1], ARGV[3])
    if type(shown) == 'table' and not string.find(shown.err, 'OOM', 1, true) then
        return shown
    end
    return 0
end
local text, give, leave = redis.pcall('get', ARGV[6])
-- To make a function costs as much as to call it: where nobody waits, there is none.
if text then
    -- include queue.lua
    local function reserve(key, first)
        redis.pcall('hset', key, first .. ':0', '1', first .. ':0:h', '0')
        if redis.pcall('pexpire', key, '200') ~= 1 then
            redis.pcall('del', key)
        end
    end
    text = queue_of(text)
    give = function(key, channel)
        return hand_over(key, ARGV[6], text, channel, reserve)
    end
    -- True: it was the first.
    leave = function(uuid)
        local is_first = string.sub(text, FIRST, FIRST + 35) == uuid
        stand(ARGV[6], text, uuid)
        text = queue_of(redis.pcall('get', ARGV[6]))
        return is_first
    end
end
if is_forced then
    -- include hash_lock.lua
    local f = read_lock(KEYS[1])
    return f and (f.err and f or f.shown == ARGV[1]
        and free(KEYS[1], redis.call('hlen', KEYS[1]), f[1], ARGV[4], ARGV[5], give))
end
if not there and ARGV[7] ~= '1' then
    local uuid = string.sub(ARGV[1], 1, 36)
    local is_first = leave and leave(uuid)
    -- What was reserved for it, or its turn, is the next one's.
    if has_hold(KEYS[1], uuid .. ':0', '0', ARGV[4], ARGV[5]) or is_first and redis.call('hlen', KEYS[1]) == 0 then
        free(KEYS[1], 2, uuid .. ':0', ARGV[4], ARGV[5], give)
    end
end
return there == true and free(KEYS[1], 2, ARGV[1], ARGV[4], ARGV[5], give) or there
