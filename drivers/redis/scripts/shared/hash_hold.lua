-- hash_hold.lua - is this very hold there, alone? true or false; an error where the key is of another type. A hold
-- that others have written beside is lost, for they may have the lock too: it is taken out, so that it keeps nobody
-- out. That it could not be taken out does not bring it back.
local function has_hold(key, owner, hold, channel, queue)
    local f = redis.pcall('hmget', key, owner, owner .. ':h')
    if f.err then
        return f
    end
    local is_there = f[1] and f[2] == hold
    local fields = is_there and redis.call('hlen', key) or 0
    if fields > 2 then
        free(key, fields, owner, channel, queue)
        return false
    end
    return is_there
end
