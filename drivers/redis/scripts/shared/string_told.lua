-- string_told.lua - says that the key is free, to those who wait by this library and, where they have a channel, to
-- others. A user that may not publish has freed it all the same.
local function tell(key, channel, peers)
    redis.pcall('publish', channel, '0')
    if peers ~= '' then
        redis.pcall('publish', peers, key)
    end
end
