-- redlock_mark.lua - an administrator's word that a node has forgotten nothing: it votes at once.
-- KEYS  marker, quarantine
-- ARGV  run id of this server ("": not known)
-- Answers what there was before: {marker or nil, PTTL of the quarantine or -2}.
local left = redis.call('pttl', KEYS[2])
local marker = redis.pcall('get', KEYS[1])
if type(marker) == 'table' then
    return string.find(marker.err, 'WRONGTYPE', 1, true) and {err = 'EMARKER not a marker'} or marker
end
redis.call('set', KEYS[1], ARGV[1])
redis.call('del', KEYS[2])
return {marker, left}
