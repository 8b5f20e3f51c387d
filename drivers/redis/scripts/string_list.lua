-- string_list.lua - which of many strings are locks, and who holds them.
-- KEYS  any
-- ARGV  1 if what others wrote is a lock too, otherwise 0; the prefix of the clients' labels
-- Answers for each lock its place among KEYS, and then what string_inspect answers.
-- include label.lua
-- include string_ours.lua
local locks = {}
for i, key in ipairs(KEYS) do
    local held = redis.pcall('get', key)
    local ours = type(held) == 'string' and is_ours(held)
    if (ours or type(held) == 'string' and ARGV[1] == '1') and not is_reserved(held) then
        locks[#locks + 1] = i
        local label = label_of(held, ours and ARGV[2])
        locks[#locks + 1] = {redis.call('pttl', key), string.sub(held, 1, 128), ours and 1 or 0, 1, label}
    end
end
return locks
