-- hash_acquire.lua - one attempt to take a lock whose key is a hash: owner = level, owner:h = hold id.
-- KEYS  lock, token counter
-- ARGV  owner, hold id, level, lease ms, token floor
-- Answers the token (level 1) or 1 (level > 1) when it is taken; 0 when level > 1 and this hold is not there;
-- {PTTL, "owner:hold id" or a foreign owner, 1 if it is a client of this library} when another holds it; an
-- error when neither can be.
-- Numbers stay below 2^53, where they are exact; they are never turned into text by Lua.
local fields = redis.pcall('hlen', KEYS[1])
if type(fields) == 'table' then
    return fields
end
local level = tonumber(ARGV[3])
local lease = tonumber(ARGV[4])
if fields > 0 then
    local f = fields <= 2 and redis.call('hgetall', KEYS[1]) or {}
    if f[3] and f[1] == f[3] .. ':h' then
        f = {f[3], f[4], f[1], f[2]}
    end
    if not f[1] or not string.find(f[1], '.:t?%d+$') or not string.find(f[2], '^%d+$')
        or f[3] and (f[3] ~= f[1] .. ':h' or not string.find(f[4], '^%d+$')) then
        return {err = 'EFOREIGN not a lock'}
    end
    local holder, hold = f[1], f[4]
    if level > 1 then
        if holder ~= ARGV[1] or hold ~= ARGV[2] then
            return 0
        end
        if redis.call('pttl', KEYS[1]) < lease then
            redis.call('pexpire', KEYS[1], ARGV[4])
        end
        -- The client's own count decides; one that cannot be shown for lack of memory is no failure.
        local shown = redis.pcall('hset', KEYS[1], holder, ARGV[3])
        if type(shown) == 'table' and not string.find(shown.err, 'OOM', 1, true) then
            return shown
        end
        return 1
    end
    -- A smaller hold id of the same owner is a hold that it has given up.
    if holder ~= ARGV[1] or not hold or tonumber(hold) > tonumber(ARGV[2]) then
        local text = hold and holder .. ':' .. hold or holder
        return {redis.call('pttl', KEYS[1]), string.sub(text, 1, 128), hold and 1 or 0}
    end
elseif level > 1 then
    return 0
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
-- Who may not set an expiry fails here, before there is a lock without one.
redis.call('pexpire', KEYS[1], ARGV[4])
redis.call('hset', KEYS[1], ARGV[1], '1', ARGV[1] .. ':h', ARGV[2])
redis.call('pexpire', KEYS[1], ARGV[4])
return token
