-- hash_force.lua - frees a lock whose key is a hash, whoever holds it.
-- KEYS  lock
-- ARGV  channel, list of those who wait for a fair lock
-- Answers 1: freed, and what others have written into the hash stays; 0: nobody held it; an error when it is no lock.
-- include hash_lock.lua
-- include hash_free.lua
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
return free(KEYS[1], f[1], ARGV[1], ARGV[2])
