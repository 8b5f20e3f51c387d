-- inspect.lua - who holds locks, as the layout's read_lock sees them.
-- KEYS  any
-- ARGV  the prefix of the clients' labels (none: they are not looked at, and reservations are shown); for a list: 1 if
--       what others wrote is a lock too, otherwise 0
-- Answers nil: nobody; or {PTTL, "owner:hold id" or what others wrote, 1 if it is a client of this library, levels, that
-- client's label or ""}; an error when it is no lock. For a list, of each lock its place among KEYS, and then that.
-- Host and process of the client are no declared key, so a user without the right names nobody either.
local function label_of(f)
    local label = f[4] and ARGV[1] and redis.pcall('get', ARGV[1] .. string.sub(f[1], 1, 36))
    return type(label) == 'string' and string.sub(label, 1, 128) or ''
end
local locks = {}
for i, key in ipairs(KEYS) do
    local f = read_lock(key)
    if f and f.err and not ARGV[2] then
        return f
    end
    if f and not f.err and not (ARGV[1] and f.is_reserved) and (f[4] or ARGV[2] ~= '0') then
        locks[#locks + 1] = i
        locks[#locks + 1] = {redis.call('pttl', key), f.shown, f[4] and 1 or 0, tonumber(f[2]), label_of(f)}
    end
end
return ARGV[2] and locks or locks[2]
