-- hash_inspect.lua - who holds a lock whose key is a hash.
-- KEYS  lock
-- Answers nil: nobody; or {PTTL, "owner:hold id" or a foreign owner, 1 if it is a client of this library,
-- levels, token or 0}; an error when it is no lock.
local fields = redis.pcall('hlen', KEYS[1])
if type(fields) == 'table' then
    return fields
end
if fields == 0 then
    return false
end
local f = fields <= 2 and redis.call('hgetall', KEYS[1]) or {}
if f[3] and f[1] == f[3] .. ':h' then
    f = {f[3], f[4], f[1], f[2]}
end
if not f[1] or not string.find(f[1], '.:t?%d+$') or not string.find(f[2], '^%d+$')
    or f[3] and (f[3] ~= f[1] .. ':h' or not string.find(f[4], '^%d+$')) then
    return {err = 'EFOREIGN not a lock'}
end
local holder = f[4] and f[1] .. ':' .. f[4] or f[1]
return {redis.call('pttl', KEYS[1]), string.sub(holder, 1, 128), f[4] and 1 or 0, tonumber(f[2]), 0}
