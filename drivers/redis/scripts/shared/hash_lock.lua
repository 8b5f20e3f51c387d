-- hash_lock.lua - what a hash is as a lock.
-- nil: nothing is there; {owner, level} of another client, {owner, level, owner:h, hold id} of ours, with what is `shown`
-- of it, `others` true where more is written there, and `is_reserved` where it is a reservation: a hold id that no hold
-- has; an error: no lock. Other data that looks like a count must not be taken for a lock: the owner begins with a UUID, as Redisson's do.
-- Of a hash with more fields than any lock has, nothing is read.
local function read_lock(key)
    local fields = redis.pcall('hlen', key)
    if type(fields) == 'table' then
        return fields
    end
    if fields == 0 then
        return nil
    end
    local f = fields <= 512 and redis.call('hgetall', key) or {}
    local values = {}
    for i = 1, #f, 2 do
        values[f[i]] = f[i + 1]
    end
    for i = 1, #f, 2 do
        local owner, level, hold = f[i], f[i + 1], values[f[i] .. ':h']
        if string.find(owner, '^[%x%-]+:t?%d+$') and string.find(owner, ':', 1, true) == 37
            and string.find(level, '^%d+$')
            and (fields == 1 or hold and string.find(hold, '^%d+$')) then
            return {owner, level, hold and owner .. ':h', hold, others = fields > 2,
                    shown = string.sub(hold and owner .. ':' .. hold or owner, 1, 128),
                    is_reserved = fields == 2 and hold == '0'}
        end
    end
    return {err = 'EFOREIGN not a lock'}
end
