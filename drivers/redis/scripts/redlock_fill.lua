-- redlock_fill.lua - writes a hold that a majority has confirmed to a node that has lost it.
-- KEYS  lock
-- ARGV  owner, hold id, lease ms
-- Answers 1: it is there, for at least that long; 0: another has this node, or a later hold.
-- include string_older.lua
local own = ARGV[1] .. ':' .. ARGV[2]
local held = redis.pcall('get', KEYS[1])
if type(held) == 'table' then
    return held
end
if held == own then
    if redis.call('pttl', KEYS[1]) < tonumber(ARGV[3]) then
        redis.call('pexpire', KEYS[1], ARGV[3])
    end
    return 1
end
if held and not is_older(held, ARGV[1], ARGV[2]) then
    return 0
end
redis.call('set', KEYS[1], own, 'px', ARGV[3])
return 1
