-- hash_list.lua - which of many hashes are locks, and who holds them.
-- KEYS  any
-- ARGV  1 if what others wrote is a lock too, otherwise 0; the prefix of the clients' labels
-- Answers for each lock its place among KEYS, and then what hash_inspect answers.
-- include hash_lock.lua
-- include label.lua
local locks = {}
for i, key in ipairs(KEYS) do
    local fields = redis.pcall('hlen', key)
    local f = type(fields) == 'number' and fields > 0 and read_lock(key, fields)
    if f and not f.is_reserved and (f[4] or ARGV[1] == '1') then
        local holder = f[4] and f[1] .. ':' .. f[4] or f[1]
        locks[#locks + 1] = i
        local label = label_of(holder, f[4] and ARGV[2])
        locks[#locks + 1] =
            {redis.call('pttl', key), string.sub(holder, 1, 128), f[4] and 1 or 0, tonumber(f[2]), label}
    end
end
return locks
