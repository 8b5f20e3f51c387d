-- hash_force.lua - frees a lock whose key is a hash, whoever holds it.
-- KEYS  lock
-- ARGV  channel
-- Answers 1: freed; 0: nobody held it; an error when it is no lock.
local fields = redis.pcall('hlen', KEYS[1])
if type(fields) == 'table' then
    return fields
end
if fields == 0 then
    return 0
end
local f = fields <= 2 and redis.call('hgetall', KEYS[1]) or {}
if f[3] and f[1] == f[3] .. ':h' then
    f = {f[3], f[4], f[1], f[2]}
end
if not f[1] or not string.find(f[1], '.:t?%d+$') or not string.find(f[2], '^%d+$')
    or f[3] and (f[3] ~= f[1] .. ':h' or not string.find(f[4], '^%d+$')) then
    return {err = 'EFOREIGN not a lock'}
end
redis.call('del', KEYS[1])
redis.pcall('publish', ARGV[1], '0')
return 1
