-- string_older.lua - is the value of this owner, with this hold id or a smaller one, which it has given up?
local function is_older(held, owner, hold_id)
    local older = string.sub(held, 1, #owner + 1) == owner .. ':' and string.match(held, '^%d+$', #owner + 2)
    return older and tonumber(older) <= tonumber(hold_id)
end
