-- string_release.lua - frees one hold of a lock whose key is a string.
-- KEYS  lock
-- ARGV  owner, hold id, level that stays, channel, channel of others ("": none)
-- Answers 1: freed; 0: the hold stays (level > 0); nil: not this hold's.
-- include string_told.lua
local held = redis.pcall('get', KEYS[1])
if type(held) == 'table' then
    return held
end
if held ~= ARGV[1] .. ':' .. ARGV[2] then
    return false
end
if tonumber(ARGV[3]) > 0 then
    return 0
end
redis.call('del', KEYS[1])
tell(KEYS[1], ARGV[4], ARGV[5])
return 1
