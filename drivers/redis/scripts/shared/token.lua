-- token.lua - the last token of a counter, and the next ones of KEYS[2]; an error when it is no counter.
-- Numbers stay below 2^53, where they are exact; they are never turned into text by Lua.
local function last_token(key)
    local last = redis.pcall('get', key) or '0'
    if type(last) == 'table' then
        return string.find(last.err, 'WRONGTYPE', 1, true) and {err = 'ETOKEN not a counter'} or last
    end
    return string.find(last, '^%d+$') and tonumber(last) or {err = 'ETOKEN not a counter'}
end
-- Draws so many (nil: 1) above ARGV[5], the last of them not below the clock: the first of them; the last is written. Only
-- the first write of a script is refused when memory is full: that is this one, or the lock would be there without a token.
-- To make text of a number takes as long as a command: of the clock it is there.
local function next_token(count)
    local last = last_token(KEYS[2])
    if type(last) == 'table' then
        return last
    end
    local now = redis.call('time')
    local clock = now[1] .. string.sub('00000' .. now[2], -6)
    local end_of_block = math.max(tonumber(clock), math.max(last, tonumber(ARGV[5])) + (count or 1))
    if end_of_block >= 9007199254740992 then
        return {err = 'ETOKEN not a counter of this size'}
    end
    redis.call('set', KEYS[2], end_of_block == tonumber(clock) and clock or end_of_block)
    return end_of_block - ((count or 1) - 1)
end
