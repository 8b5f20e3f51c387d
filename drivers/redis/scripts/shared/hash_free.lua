-- hash_free.lua - takes the fields of an owner out of a hash with so many fields, and tells those who wait when nobody
-- has it, unless `gives` gave it to one of them. Answers 1, then 2, or an error where the user may not do that. What
-- others have written stays; but Redisson deletes a key that has only `mode` left, for nobody has it.
local function free(key, fields, owner, channel, queue, gives)
    local stays = fields > 2 and not (fields == 3 and redis.call('hmget', key, 'mode')[1])
    local taken = stays and redis.pcall('hdel', key, owner, owner .. ':h') or redis.pcall('del', key)
    if not tonumber(taken) then
        return taken
    end
    if stays then
        return 1
    end
    if gives and gives(key, channel) then
        return 2
    end
    -- A user that may not publish has freed it all the same.
    redis.pcall('publish', channel, '0')
    -- Who waits for a fair lock hears its own channel only. Its first may be gone: the next finds that out.
    for _, waiter in ipairs(redis.pcall('lrange', queue, 0, 7)) do
        redis.pcall('publish', channel .. ':' .. waiter, '0')
    end
    return 1
end
