-- redlock_release.lua - frees one hold of a lock at one node.
-- KEYS  lock
-- ARGV  owner, hold id, channel ("": nobody is told)
-- Answers 1: freed; 0: not this hold's.
local held = redis.pcall('get', KEYS[1])
if type(held) == 'table' then
    return held
end
if held ~= ARGV[1] .. ':' .. ARGV[2] then
    return 0
end
redis.call('del', KEYS[1])
if ARGV[3] ~= '' then
    -- A user that may not publish has freed it all the same.
    redis.pcall('publish', ARGV[3], '0')
end
return 1
