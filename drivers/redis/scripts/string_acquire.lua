-- string_acquire.lua - one attempt to take a lock whose key is a string, "owner:hold id"; or extends one hold of it,
-- which never creates, never shortens.
-- KEYS  lock, token counter
-- ARGV  owner, hold id, level (0: a renewal), lease ms, token floor; level 1: how many tokens (none: 1), queue, 1 if
--       its process waits and hears, 2 if it has waited for long and does not
-- Answers the first token (level 1); of another level 1: it lasts at least that long, 0: this hold is not there;
-- {PTTL, value, 1 if a client of this library wrote it, place in the queue or 0 or -1} when another holds it or has
-- it reserved; an error when neither can be.
-- include token.lua
local own = ARGV[1] .. ':' .. ARGV[2]
local held = redis.pcall('get', KEYS[1])
if type(held) == 'table' then
    return held
end
if ARGV[3] ~= '1' then
    if held ~= own then
        return 0
    end
    -- A key without expiry, after somebody's PERSIST, gets one again.
    if redis.call('pttl', KEYS[1]) < tonumber(ARGV[4]) then
        redis.call('pexpire', KEYS[1], ARGV[4])
    end
    return 1
end
local uuid = string.sub(ARGV[1], 1, 36)
-- Who has it reserved stands in the queue no more.
local is_mine = held == uuid .. ':0:0'
local text, leave = not is_mine and redis.pcall('get', ARGV[7])
-- To make a function costs as much as to call it: those for a lock that is free are made where they are needed.
if text or held and not is_mine then
    -- include queue.lua
    -- include string_older.lua
    -- include string_ours.lua
    text = queue_of(text)
    if held and not is_older(held, ARGV[1], ARGV[2]) then
        local ours = is_ours(held) and 1 or 0
        local place = stand(ARGV[7], text, uuid, ARGV[8], ours == 0)
        return {redis.call('pttl', KEYS[1]), string.sub(held, 1, 128), ours, place}
    end
    local left = held and 0 or others_turn(text, uuid, ARGV[8])
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
redis.call('set', KEYS[1], own, 'px', ARGV[4])
if leave then
    leave()
end
return token
