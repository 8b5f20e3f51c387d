-- redlock_acquire.lua - the vote of one node on a claim; or, without token and quarantine, writes a hold that a
-- majority has confirmed to a node that has lost it. The lock is a string key, "owner:hold id".
-- KEYS  lock, token counter, marker, quarantine
-- ARGV  owner, hold id, lease ms, 1 if a token is wanted (else 0), token floor, run id of this server ("": not
--       known), 1 if what is written survives a restart (else 0), quarantine ms (0: there is no quarantine)
-- Answers the token, or 1 where none is wanted, when the claim has this node; {PTTL, value, 1 if a client of
-- this library wrote it} when another has it; {0, ms} when the node has no vote for so long (-1: without an
-- end); an error when neither can be.
-- include string_older.lua
-- include string_ours.lua
-- include token.lua
-- A node that is not known, or not as this process, may have forgotten holds: it votes again when all of them
-- have ended. The quarantine goes first: nothing may leave a marker without it.
local function left_of_quarantine()
    local marker = redis.pcall('get', KEYS[3])
    if type(marker) == 'table' then
        return string.find(marker.err, 'WRONGTYPE', 1, true) and {err = 'EMARKER not a marker'} or marker
    end
    if marker ~= ARGV[6] then
        if (not marker or ARGV[7] ~= '1') and redis.call('pttl', KEYS[4]) < tonumber(ARGV[8]) then
            redis.call('set', KEYS[4], '1', 'px', ARGV[8])
        end
        redis.call('set', KEYS[3], ARGV[6])
    end
    return redis.call('pttl', KEYS[4])
end
local held = redis.pcall('get', KEYS[1])
if ARGV[8] ~= '0' then
    local left = left_of_quarantine()
    if type(left) == 'table' then
        return left
    end
    if left ~= -2 then
        return {0, left}
    end
end
if type(held) == 'table' then
    return held
end
if held and not is_older(held, ARGV[1], ARGV[2]) then
    return {redis.call('pttl', KEYS[1]), string.sub(held, 1, 128), is_ours(held) and 1 or 0}
end
local token = 1
if ARGV[4] == '1' then
    token = next_token()
    if type(token) == 'table' then
        return token
    end
end
-- This very claim may come twice, or long after it was given up and the others had granted it: what its hold has
-- been extended to since stays.
local own = ARGV[1] .. ':' .. ARGV[2]
if held ~= own then
    redis.call('set', KEYS[1], own, 'px', ARGV[3])
elseif redis.call('pttl', KEYS[1]) < tonumber(ARGV[3]) then
    redis.call('pexpire', KEYS[1], ARGV[3])
end
return token
