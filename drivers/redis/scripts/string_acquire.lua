-- string_acquire.lua - one attempt to take a lock whose key is a string, "owner:hold id".
-- KEYS  lock, token counter
-- ARGV  owner, hold id, level, lease ms, token floor
-- Answers the token (level 1) or 1 (level > 1) when it is taken; 0 when level > 1 and this hold is not there;
-- {PTTL, value, 1 if a client of this library wrote it} when another holds it; an error when neither can be.
-- include string_ours.lua
-- include token.lua
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
        return {redis.call('pttl', KEYS[1]), string.sub(held, 1, 128), is_ours(held) and 1 or 0}
    end
end
local token = next_token()
if type(token) == 'table' then
    return token
end
-- Only the first write of a script is refused when memory is full: the counter goes first, or the lock would
-- be there without a token.
redis.call('set', KEYS[2], token)
redis.call('set', KEYS[1], own, 'px', ARGV[4])
return token
