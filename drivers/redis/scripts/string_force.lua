-- string_force.lua - frees a lock whose key is a string, whoever holds it.
-- KEYS  lock
-- ARGV  channel, channel of others ("": none)
-- Answers 1: freed; 0: nobody held it.
-- include string_told.lua
local held = redis.pcall('get', KEYS[1])
if type(held) == 'table' then
    return held
end
if not held then
    return 0
end
redis.call('del', KEYS[1])
tell(KEYS[1], ARGV[1], ARGV[2])
return 1
