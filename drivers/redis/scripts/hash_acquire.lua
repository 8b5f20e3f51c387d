-- hash_acquire.lua - one attempt to take a lock whose key is a hash: owner = level, owner:h = hold id.
-- KEYS  lock, token counter
-- ARGV  owner, hold id, level, lease ms, token floor
-- Answers the token (level 1) or 1 (level > 1) when it is taken; 0 when level > 1 and this hold is not there;
-- {PTTL, "owner:hold id" or a foreign owner, 1 if it is a client of this library} when another holds it; an
-- error when neither can be.
-- include hash_lock.lua
-- include token.lua
local fields = redis.pcall('hlen', KEYS[1])
if type(fields) == 'table' then
    return fields
end
local level = tonumber(ARGV[3])
local lease = tonumber(ARGV[4])
if fields > 0 then
    local f = read_lock(KEYS[1], fields)
    if not f then
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
local token = next_token()
if type(token) == 'table' then
    return token
end
-- Only the first write of a script is refused when memory is full: the counter goes first, or the lock would
-- be there without a token.
redis.call('set', KEYS[2], token)
-- Who may not set an expiry fails here, before there is a lock without one.
redis.call('pexpire', KEYS[1], ARGV[4])
redis.call('hset', KEYS[1], ARGV[1], '1', ARGV[1] .. ':h', ARGV[2])
redis.call('pexpire', KEYS[1], ARGV[4])
return token
