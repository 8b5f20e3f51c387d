-- redlock_raise.lua - writes a token that was given out to a node that drew a smaller one, or none.
-- KEYS  token counter
-- ARGV  token
-- Answers 1: the counter is at least that large; an error when it is no counter.
-- include token.lua
local last = last_token(KEYS[1])
if type(last) == 'table' then
    return last
end
if last < tonumber(ARGV[1]) then
    redis.call('set', KEYS[1], ARGV[1])
end
return 1
