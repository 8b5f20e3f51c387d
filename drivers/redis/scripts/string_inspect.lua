-- string_inspect.lua - who holds a lock whose key is a string.
-- KEYS  lock
-- Answers nil: nobody; or {PTTL, value, 1 if a client of this library wrote it, levels, token or 0}.
-- include string_ours.lua
local held = redis.pcall('get', KEYS[1])
if type(held) == 'table' or not held then
    return held
end
if is_reserved(held) then
    return false
end
return {redis.call('pttl', KEYS[1]), string.sub(held, 1, 128), is_ours(held) and 1 or 0, 1, 0}
