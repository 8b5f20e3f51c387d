-- token.lua - the next tokens of KEYS[2], above ARGV[5] and the clock: the first and the last of so many (nil: 1),
-- and the last is to be written into it; an error when it is no counter.
-- Numbers stay below 2^53, where they are exact; they are never turned into text by Lua.
local function next_token(count)
    local last = redis.pcall('get', KEYS[2])
    if type(last) == 'table' then
        return string.find(last.err, 'WRONGTYPE', 1, true) and {err = 'ETOKEN not a counter'} or last
    end
    if last and not string.find(last, '^%d+$') then
        return {err = 'ETOKEN not a counter'}
    end
    local now = redis.call('time')
    local token = math.max(tonumber(last or 0), tonumber(ARGV[5]), now[1] * 1000000 + now[2]) + 1
    local end_of_block = token + ((count or 1) - 1)
    if end_of_block >= 9007199254740992 then
        return {err = 'ETOKEN not a counter of this size'}
    end
    return token, end_of_block
end
