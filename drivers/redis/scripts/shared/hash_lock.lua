-- hash_lock.lua - what a hash is as a lock.
-- {owner, level} of another client, {owner, level, owner:h, hold id} of ours; nil: no lock. Other data that
-- looks like a count must not be taken for a lock: the owner begins with a UUID, as Redisson's do.
local function read_lock(key, fields)
    local f = fields <= 2 and redis.call('hgetall', key) or {}
    if f[3] and f[1] == f[3] .. ':h' then
        f = {f[3], f[4], f[1], f[2]}
    end
    if not f[1] or not string.find(f[1], '^[%x%-]+:t?%d+$') or string.find(f[1], ':', 1, true) ~= 37
        or not string.find(f[2], '^%d+$')
        or f[3] and (f[3] ~= f[1] .. ':h' or not string.find(f[4], '^%d+$')) then
        return nil
    end
    return f
end
