-- string_inspect.lua - who holds a lock whose key is a string.
-- KEYS  lock
-- ARGV  the prefix of the clients' labels (none: they are not looked at)
-- Answers nil: nobody; or {PTTL, value, 1 if a client of this library wrote it, levels, that client's label or
-- ""}.
-- include label.lua
-- include string_ours.lua
local held = redis.pcall('get', KEYS[1])
if type(held) == 'table' or not held then
    return held
end
if is_reserved(held) then
    return false
end
local ours = is_ours(held)
return {redis.call('pttl', KEYS[1]), string.sub(held, 1, 128), ours and 1 or 0, 1, label_of(held, ours and ARGV[1])}
