-- string_ours.lua - did a client of this library write the value: "UUID:number:hold id"?
local function is_ours(held)
    return string.byte(held, 37) == 58 and string.find(held, '^[%x%-]+:t?%d+:%d+$')
end
