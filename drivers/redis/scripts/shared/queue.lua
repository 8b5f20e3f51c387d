-- queue.lua - who waits for a lock: client processes, in the order of their coming, in one string. Its first 13 bytes
-- are the instant (ms) at which the lock was last left free for everybody, the next how often it was reserved since then,
-- up to 9, 13 more when one of those who wait saw the lock of another library, or polled; then there are 49 for each process: 36 of
-- its UUID, 13 of the instant at which it is forgotten unless it has asked again.
-- Only GET, SET and PUBLISH are needed, on a key beside those of the clients' names. Who may not use it, or has no
-- memory left, goes without: all that is lost is the order.
-- A hand-off comes when the server has done other things for a while: then each further function of Lua's own costs as
-- much as a command, and few are used.
local FIRST, SIZE = 28, 49
local function now_ms()
    local now = redis.call('time')
    local us = tonumber(now[2])
    return now[1] * 1000 + (us - us % 1000) / 1000
end
local function queue_of(text)
    local is_whole = text and not text.err and #text % SIZE == FIRST - 1
    return is_whole and (tonumber(string.sub(text, 1, 13)) or 0) > 0 and text or ''
end
-- Nil; 0: nothing can be written now; -1: the user may not. Of a replica it is an error: who asks is to find its primary.
local function write_queue(queue, text)
    local err = redis.pcall('set', queue, text, 'px', '3000').err
    if err and string.find(err, 'READONLY', 1, true) then
        redis.call('set', queue, text, 'px', '3000')
    end
    local is_passing = err and (string.find(err, 'OOM', 1, true) or string.find(err, 'MISCONF', 1, true)
        or string.find(err, 'NOREPLICAS', 1, true))
    return err and (is_passing and 0 or -1)
end
-- So long (ms) it is not this process' turn to take a lock that is free: in the first 2 ms after it was left free for
-- everybody none of ours takes it, but the first of the queue as it leaves, in the next 10 the first. Where it is left free
-- for longer, the instant lies in the future, but for those who do not wait in line. Who stands behind the first is told, or
-- looks after it when a reservation would be over.
local function others_turn(text, uuid, joins)
    local past = #text >= FIRST and now_ms() - tonumber(string.sub(text, 1, 13)) or 12
    local at = string.find(text, uuid, FIRST, true)
    local turn = at == FIRST and (joins == '1' and 2 or 0) or 12
    if past < (joins == '1' and -250 or 0) or past >= turn then
        return 0
    end
    return at and at > FIRST and math.max(200, turn - past) or turn - past
end
-- The process waits for it or, with joins ~= '1', no longer does ('has': for it has taken it, and it was free until now).
-- Its place in the queue, from 1 on; 0: it has none; -1: it may have none. An entry that lasts until the process asks
-- again is not written anew, unless another library has the lock, or one that polls finds others in line, and neither
-- was seen for a second.
local function stand(queue, text, uuid, joins, is_foreign)
    local at, entry, now = string.find(text, uuid, FIRST, true), '', 0
    local is_news, polls, takes = false, joins == '2' and #text > FIRST and not at, joins == 'has' and at
    if joins == '1' or polls or takes then
        now = now_ms()
    end
    if takes and now > tonumber(string.sub(text, 1, 13)) then
        text = string.format('%013.0f0', now) .. string.sub(text, 15)
    end
    if joins == '1' then
        text = text ~= '' and text or string.format('%013.0f%014d', now - 12, 0)
        at = at or #text < 25000 and #text + 1
        entry = uuid .. string.format('%013.0f', now + 3000)
    end
    if (polls or joins == '1' and is_foreign) and math.abs(now - (tonumber(string.sub(text, 15, 27)) or 0)) > 1000 then
        text, is_news = string.sub(text, 1, 14) .. string.format('%013.0f', now) .. string.sub(text, FIRST), true
    end
    local lasts = not is_news and at and (tonumber(string.sub(text, at + 36, at + 48)) or 0) > now + 2300
    if at then
        text = string.sub(text, 1, at - 1) .. entry .. string.sub(text, at + SIZE)
    end
    local refused = (at or is_news) and not (joins == '1' and lasts) and write_queue(queue, text)
    return refused or at and joins == '1' and (at - FIRST) / SIZE + 1 or 0
end
-- Of a lock that is free: the first in the queue that hears of it is told. True: it is reserved for that one. False: it
-- stays free, since nobody hears, or everybody's turn has come: after 100 ms and four reservations, or a second. For a
-- minute after another library had it, that turn is three tenths as long as ours had it before, a quarter of a second at
-- most: a client that polls every 250 ms is to meet it soon.
local function hand_over(key, queue, text, channel, reserve)
    if text == '' then
        return false
    end
    local now, since, at, heard = now_ms(), string.sub(text, 1, 13), FIRST, 0
    local times, seen = tonumber(string.sub(text, 14, 14)) or 9, string.sub(text, 15, 27)
    while heard == 0 and at < #text and at < FIRST + 16 * SIZE do
        local uuid, ends = string.sub(text, at, at + 35), tonumber(string.sub(text, at + 36, at + 48))
        local told = ends and now < ends and redis.pcall('publish', channel .. ':' .. uuid, '0')
        heard = tonumber(told) or 0
        at = at + SIZE
    end
    local past = now - tonumber(since)
    if heard > 0 and past >= 0 and (past < 100 or times < 4 and past < 1000) then
        reserve(key, string.sub(text, at - SIZE, at - SIZE + 35))
        local more = string.sub('1234567899', times + 1, times + 1)
        if write_queue(queue, since .. more .. seen .. string.sub(text, at)) ~= -1 then
            return true
        end
        -- Who cannot take the first out of the queue does not reserve for it either.
        redis.call('del', key)
        return false
    end
    local is_long = past > 0 and math.abs(now - (tonumber(seen) or 0)) < 60000
    local left_free = is_long and now + math.min(248, math.floor(past * 0.3)) or now
    -- Where nobody hears, there are no turns; and where it was left free for longer, it stays so.
    if heard == 0 then
        left_free = now - 12
    elseif past < 0 and past >= -250 then
        left_free = since
    end
    -- Behind a write, the next one needs no memory.
    redis.call('del', key)
    write_queue(queue, string.format('%013.0f0', left_free) .. seen .. string.sub(text, heard > 0 and at - SIZE or at))
    return false
end
