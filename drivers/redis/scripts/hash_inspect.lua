-- hash_inspect.lua - who holds a lock whose key is a hash.
-- KEYS  lock
-- ARGV  the prefix of the clients' labels (none: they are not looked at)
-- Answers nil: nobody; or {PTTL, "owner:hold id" or a foreign owner, 1 if it is a client of this library,
-- levels, that client's label or ""}; an error when it is no lock.
-- include hash_lock.lua
-- include label.lua
local fields = redis.pcall('hlen', KEYS[1])
if type(fields) == 'table' then
    return fields
end
if fields == 0 then
    return false
end
local f = read_lock(KEYS[1], fields)
if not f then
    return {err = 'EFOREIGN not a lock'}
end
if f.is_reserved then
    return false
end
local holder = f[4] and f[1] .. ':' .. f[4] or f[1]
local label = label_of(holder, f[4] and ARGV[1])
return {redis.call('pttl', KEYS[1]), string.sub(holder, 1, 128), f[4] and 1 or 0, tonumber(f[2]), label}
