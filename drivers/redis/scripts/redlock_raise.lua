-- redlock_raise.lua - writes a token that was given out to a node that drew a smaller one, or none.
-- KEYS  token counter
-- ARGV  token
-- Answers 1: the counter is at least that large; an error when it is no counter.
local last = redis.pcall('get', KEYS[1])
if type(last) == 'table' then
    return string.find(last.err, 'WRONGTYPE', 1, true) and {err = 'ETOKEN not a counter'} or last
end
if last and not string.find(last, '^%d+$') then
    return {err = 'ETOKEN not a counter'}
end
if tonumber(last or 0) < tonumber(ARGV[1]) then
    redis.call('set', KEYS[1], ARGV[1])
end
return 1
