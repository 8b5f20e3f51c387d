-- string_ours.lua - did a client of this library write the value: "UUID:number:hold id"?
local function is_ours(held)
    return string.byte(held, 37) == 58 and string.find(held, '^[%x%-]+:t?%d+:%d+$')
end
-- The value of a reservation: a hold id that no hold has. Clients that do not know of it see a short lock.
local function is_reserved(held)
    return string.sub(held, 37) == ':0:0' and is_ours(held)
end
