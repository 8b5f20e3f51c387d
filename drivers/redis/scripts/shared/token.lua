-- token.lua - the last token of a counter, and the next ones of KEYS[2]; an error when it is no counter.
-- Numbers stay below 2^53, where they are exact; they are never turned into text by Lua.
local function last_token(key)
    local last = redis.pcall('get', key) or '0'
    if type(last) == 'table' then
        return string.find(last.err, 'WRONGTYPE', 1, true) and {err = 'ETOKEN not a counter'} or last
    end
    return string.find(last, '^%d+$') and tonumber(last) or {err = 'ETOKEN not a counter'}
end
-- Draws so many (nil: 1) above ARGV[5] and not below the clock: the first of them; the last is written. Only the first write
-- of a script is refused when memory is full: that is this one, or the lock would be there without a token.
-- To make a number into text takes as long as a command; the clock comes as text.
local function next_token(count)
    local last = last_token(KEYS[2])
    if type(last) == 'table' then
        return last
    end
    local now, floor, n = redis.call('time'), tonumber(ARGV[5]), count or 1
    local text = now[1] .. string.sub('00000' .. now[2], -6)
    local clock, token = tonumber(text), (floor > last and floor or last) + 1
    local is_clock = clock > token
    token = is_clock and clock or token
    local end_of_block = token + (n - 1)
    if end_of_block >= 9007199254740992 then
        return {err = 'ETOKEN not a counter of this size'}
    end
    redis.call('set', KEYS[2], is_clock and n == 1 and text or end_of_block)
    return token
end
