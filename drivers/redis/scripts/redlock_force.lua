-- redlock_force.lua - frees at one node what was seen there, whoever holds it. What came after it stays.
-- KEYS  lock
-- ARGV  the value's first 128 bytes as they were seen, channel
-- Answers 1: freed; 0: it is gone.
local held = redis.pcall('get', KEYS[1])
if type(held) == 'table' then
    return held
end
if not held or string.sub(held, 1, 128) ~= ARGV[1] then
    return 0
end
redis.call('del', KEYS[1])
redis.pcall('publish', ARGV[2], '0')
return 1
