-- string_inspect.lua - who holds locks whose keys are strings: see shared/inspect.lua.
-- include string_ours.lua
local function read_lock(key)
    local held = redis.pcall('get', key)
    if type(held) ~= 'string' then
        return held
    end
    return {held, '1', nil, is_ours(held), shown = string.sub(held, 1, 128), is_reserved = is_reserved(held)}
end
-- include inspect.lua
