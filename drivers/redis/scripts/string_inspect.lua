-- string_inspect.lua - who holds locks whose keys are strings.
-- KEYS  any
-- ARGV  the prefix of the clients' labels (none: they are not looked at, and reservations are shown); for a list: 1 if
--       what others wrote is a lock too, otherwise 0
-- Answers nil: nobody; or {PTTL, value, 1 if a client of this library wrote it, levels, that client's label or ""}. For
-- a list, of each lock its place among KEYS, and then that.
-- include label.lua
-- include string_ours.lua
local locks = {}
for i, key in ipairs(KEYS) do
    local held = redis.pcall('get', key)
    if type(held) == 'table' and not ARGV[2] then
        return held
    end
    local ours = type(held) == 'string' and is_ours(held)
    if (ours or type(held) == 'string' and ARGV[2] ~= '0') and not (ARGV[1] and is_reserved(held)) then
        locks[#locks + 1] = i
        local label = label_of(held, ours and ARGV[1])
        locks[#locks + 1] = {redis.call('pttl', key), string.sub(held, 1, 128), ours and 1 or 0, 1, label}
    end
end
return ARGV[2] and locks or locks[2]
