-- hash_force.lua - frees a lock whose key is a hash, whoever holds it.
-- KEYS  lock
-- ARGV  channel
-- Answers 1: freed; 0: nobody held it; an error when it is no lock.
-- include hash_lock.lua
local fields = redis.pcall('hlen', KEYS[1])
if type(fields) == 'table' then
    return fields
end
if fields == 0 then
    return 0
end
local f = read_lock(KEYS[1], fields)
if not f then
    return {err = 'EFOREIGN not a lock'}
end
redis.call('del', KEYS[1])
redis.pcall('publish', ARGV[1], '0')
return 1
