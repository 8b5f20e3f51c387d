-- redlock_release.lua - frees one hold of a lock at one node; or by force what was seen there, whoever holds it. What
-- came after it stays.
-- KEYS  lock
-- ARGV  owner and hold id, or the value's first 128 bytes as they were seen and ""; channel ("": nobody is told);
--       what is told: 0: a release; 1: a claim that has failed
-- Answers 1: freed; 0: it is not there.
local held = redis.pcall('get', KEYS[1])
if type(held) == 'table' then
    return held
end
local own = ARGV[2] == '' and ARGV[1] or ARGV[1] .. ':' .. ARGV[2]
if not held or string.sub(held, 1, 128) ~= own then
    return 0
end
redis.call('del', KEYS[1])
if ARGV[3] ~= '' then
    -- A user that may not publish has freed it all the same.
    redis.pcall('publish', ARGV[3], ARGV[4])
end
return 1
