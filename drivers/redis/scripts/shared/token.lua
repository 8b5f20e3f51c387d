-- token.lua - the last token of a counter, and the next ones of KEYS[2]; an error when it is no counter.
-- Numbers stay below 2^53, where they are exact; they are never turned into text by Lua.
local function last_token(key)
    local last = redis.pcall('get', key) or '0'
    if type(last) == 'table' then
        return string.find(last.err, 'WRONGTYPE', 1, true) and {err = 'ETOKEN not a counter'} or last
    end
    return string.find(last, '^%d+$') and tonumber(last) or {err = 'ETOKEN not a counter'}
end
-- Draws so many (nil: 1) above ARGV[5] and the clock: the first of them; the last is written. Only the first write of
-- a script is refused when memory is full: that is this one, or the lock would be there without a token.
local function next_token(count)
    local last = last_token(KEYS[2])
    if type(last) == 'table' then
        return last
    end
    local now = redis.call('time')
    local token = math.max(last, tonumber(ARGV[5]), now[1] * 1000000 + now[2]) + 1
    local end_of_block = token + ((count or 1) - 1)
    if end_of_block >= 9007199254740992 then
        return {err = 'ETOKEN not a counter of this size'}
    end
    redis.call('set', KEYS[2], end_of_block)
    return token
end
