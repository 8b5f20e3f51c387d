-- label.lua - host and process of the client of this owner, for people: what stands behind this prefix, at its UUID (no
-- prefix: nobody is named). It is no declared key, so a user without the right names nobody either.
local function label_of(owner, prefix)
    local label = prefix and redis.pcall('get', prefix .. string.sub(owner, 1, 36))
    return type(label) == 'string' and string.sub(label, 1, 128) or ''
end
