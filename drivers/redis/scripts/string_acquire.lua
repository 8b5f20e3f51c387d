-- string_acquire.lua - one attempt to take a lock whose key is a string, "owner:hold id".
-- KEYS  lock, token counter
-- ARGV  owner, hold id, level, lease ms, token floor
-- Answers the token (level 1) or 1 (level > 1) when it is taken; 0 when level > 1 and this hold is not there;
-- {PTTL, value, 1 if a client of this library wrote it} when another holds it; an error when neither can be.
-- Numbers stay below 2^53, where they are exact; they are never turned into text by Lua.
local own = ARGV[1] .. ':' .. ARGV[2]
local held = redis.pcall('get', KEYS[1])
if type(held) == 'table' then
    return held
end
if tonumber(ARGV[3]) > 1 then
    if held ~= own then
        return 0
    end
    if redis.call('pttl', KEYS[1]) < tonumber(ARGV[4]) then
        redis.call('pexpire', KEYS[1], ARGV[4])
    end
    return 1
end
if held then
    -- A smaller hold id of the same owner is a hold that it has given up.
    local older = string.sub(held, 1, #ARGV[1] + 1) == ARGV[1] .. ':'
        and string.match(held, '^%d+$', #ARGV[1] + 2)
    if not older or tonumber(older) > tonumber(ARGV[2]) then
        local ours = string.find(held, '^[%x%-]+:t?%d+:%d+$') and string.find(held, ':', 1, true) == 37
        return {redis.call('pttl', KEYS[1]), string.sub(held, 1, 128), ours and 1 or 0}
    end
end
local last = redis.pcall('get', KEYS[2])
if type(last) == 'table' then
    return string.find(last.err, 'WRONGTYPE', 1, true) and {err = 'ETOKEN not a counter'} or last
end
if last and not string.find(last, '^%d+$') then
    return {err = 'ETOKEN not a counter'}
end
local now = redis.call('time')
local token = math.max(tonumber(last or 0), tonumber(ARGV[5]), now[1] * 1000000 + now[2]) + 1
if token >= 9007199254740992 then
    return {err = 'ETOKEN not a counter of this size'}
end
-- Only the first write of a script is refused when memory is full: the counter goes first, or the lock would
-- be there without a token.
redis.call('set', KEYS[2], token)
redis.call('set', KEYS[1], own, 'px', ARGV[4])
return token
