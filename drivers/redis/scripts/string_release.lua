-- string_release.lua - frees one hold of a lock whose key is a string; who has none no longer waits for it. Or, by force,
-- what was seen there.
-- KEYS  lock
-- ARGV  owner, hold id (or what inspect.lua showed of it and ""), level that stays, channel, channel of others
--       ("": none), queue, 1 if its process waits
-- Answers 1: freed; 2: freed for the first in line; 0: the hold stays (level > 0); nil: not this hold's.
local held = redis.pcall('get', KEYS[1])
if type(held) == 'table' then
    return held
end
local is_there, uuid = held == ARGV[1] .. ':' .. ARGV[2], string.sub(ARGV[1], 1, 36)
if ARGV[2] == '' then
    is_there = held and string.sub(held, 1, 128) == ARGV[1]
end
if not is_there and ARGV[7] == '1' then
    return false
end
if is_there and tonumber(ARGV[3]) > 0 then
    return 0
end
-- What was reserved for it, or its turn, is the next one's.
local frees, is_given = is_there or held == uuid .. ':0:0', false
local text = redis.pcall('get', ARGV[6])
-- To make a function costs as much as to call it: where nobody waits, there is none.
if text then
    -- include queue.lua
    local function reserve(key, first)
        if redis.pcall('set', key, first .. ':0:0', 'px', '200').err then
            -- Behind a write, the next one needs no memory.
            redis.call('del', key)
            redis.pcall('set', key, first .. ':0:0', 'px', '200')
        end
    end
    text = queue_of(text)
    if not is_there then
        stand(ARGV[6], text, uuid)
        frees = frees or not held and string.sub(text, FIRST, FIRST + 35) == uuid
        text = frees and queue_of(redis.pcall('get', ARGV[6]))
    end
    is_given = frees and hand_over(KEYS[1], ARGV[6], text, ARGV[4], reserve)
end
if not frees then
    return false
end
if not is_given then
    redis.call('del', KEYS[1])
    -- A user that may not publish has freed it all the same.
    redis.pcall('publish', ARGV[4], '0')
    if ARGV[5] ~= '' then
        redis.pcall('publish', ARGV[5], KEYS[1])
    end
end
return is_there and (is_given and 2 or 1)
