-- string_force.lua - frees a lock whose key is a string, whoever holds it.
-- KEYS  lock
-- ARGV  channel
-- Answers 1: freed; 0: nobody held it.
local held = redis.pcall('get', KEYS[1])
if type(held) == 'table' then
    return held
end
if not held then
    return 0
end
redis.call('del', KEYS[1])
redis.pcall('publish', ARGV[1], '0')
return 1
