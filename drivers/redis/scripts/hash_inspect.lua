-- hash_inspect.lua - who holds locks whose keys are hashes.
-- KEYS  any
-- ARGV  the prefix of the clients' labels (none: they are not looked at, and reservations are shown); for a list: 1 if
--       what others wrote is a lock too, otherwise 0
-- Answers nil: nobody; or {PTTL, "owner:hold id" or a foreign owner, 1 if it is a client of this library, levels, that
-- client's label or ""}; an error when it is no lock. For a list, of each lock its place among KEYS, and then that.
-- include hash_lock.lua
-- include label.lua
local locks = {}
for i, key in ipairs(KEYS) do
    local f = read_lock(key)
    if f and f.err and not ARGV[2] then
        return f
    end
    if f and not f.err and not (ARGV[1] and f.is_reserved) and (f[4] or ARGV[2] ~= '0') then
        locks[#locks + 1] = i
        local label = label_of(f[1], f[4] and ARGV[1])
        locks[#locks + 1] = {redis.call('pttl', key), f.shown, f[4] and 1 or 0, tonumber(f[2]), label}
    end
end
return ARGV[2] and locks or locks[2]
