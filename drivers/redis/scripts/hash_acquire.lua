-- hash_acquire.lua - one attempt to take a lock whose key is a hash: owner = level, owner:h = hold id; or extends one
-- hold of it, which never creates, never shortens.
-- KEYS  lock, token counter
-- ARGV  owner, hold id, level (0: a renewal), lease ms, token floor; level 1: how many tokens (none: 1), queue, 1 if
--       its process waits and hears, 2 if it has waited for long and does not; another level: channel, list of those who wait for a fair lock
-- Answers the first token (level 1); of another level 1: it lasts at least that long, 0: this hold is not there, or no
-- longer; {PTTL, "owner:hold id" or a foreign owner, 1 if its release will be told, place in the queue or 0 or
-- -1} when another holds it or has it reserved; an error when neither can be.
if ARGV[3] ~= '1' then
    -- include hash_free.lua
    -- include hash_hold.lua
    local there = has_hold(KEYS[1], ARGV[1], ARGV[2], ARGV[6], ARGV[7])
    if there ~= true then
        return there or 0
    end
    -- A key without expiry, after somebody's PERSIST, gets one again.
    if redis.call('pttl', KEYS[1]) < tonumber(ARGV[4]) then
        redis.call('pexpire', KEYS[1], ARGV[4])
    end
    -- The client's own count decides; one that cannot be shown for lack of memory is no failure.
    local shown = ARGV[3] ~= '0' and redis.pcall('hset', KEYS[1], ARGV[1], ARGV[3])
    if type(shown) == 'table' and not string.find(shown.err, 'OOM', 1, true) then
        return shown
    end
    return 1
end
-- include hash_lock.lua
-- include token.lua
local uuid = string.sub(ARGV[1], 1, 36)
-- Who waits and hears has most likely been told that it is reserved for its process, alone.
local is_told = ARGV[8] == '1' and redis.pcall('hmget', KEYS[1], uuid .. ':0:h')[1] == '0'
    and redis.call('hlen', KEYS[1]) == 2
local f = not is_told and read_lock(KEYS[1])
if f and f.err then
    return f
end
-- Who has it reserved stands in the queue no more.
local is_mine = is_told or f and f.is_reserved and f[1] == uuid .. ':0'
local text, leave = not is_mine and redis.pcall('get', ARGV[7])
-- To make a function costs as much as to call it: those for a lock that is free are made where they are needed.
if text or f and not is_mine then
    -- include queue.lua
    text = queue_of(text)
    -- A smaller hold id of the same owner is a hold that it has given up.
    if f and (f[1] ~= ARGV[1] or not f[4] or tonumber(f[4]) > tonumber(ARGV[2]) or f.others) then
        -- Nobody tells when others leave the hash.
        local tells = f[4] and not f.others
        local place = stand(ARGV[7], text, uuid, ARGV[8])
        return {redis.call('pttl', KEYS[1]), f.shown, tells and 1 or 0, place}
    end
    local left = f and 0 or others_turn(text, uuid, ARGV[8])
    if left > 0 then
        return {left, '', 1, stand(ARGV[7], text, uuid, ARGV[8])}
    end
    leave = function()
        stand(ARGV[7], text, uuid, 'has')
    end
end
local token = next_token(tonumber(ARGV[6]))
if type(token) == 'table' then
    return token
end
-- Who may not set an expiry fails before there is a lock without one; or deletes it again, as he was able to before.
if is_mine then
    redis.call('del', KEYS[1])
else
    redis.call('pexpire', KEYS[1], ARGV[4])
end
redis.call('hset', KEYS[1], ARGV[1], '1', ARGV[1] .. ':h', ARGV[2])
local expires = redis.pcall('pexpire', KEYS[1], ARGV[4])
if expires ~= 1 then
    redis.call('del', KEYS[1])
    return expires
end
if leave then
    leave()
end
return token
