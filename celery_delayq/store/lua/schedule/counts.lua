-- Tell how much is in each state in one queue, at one moment, and which processes have leases on it.
--
-- KEYS     1 due  2 entries  3 tasks  4 paused_due  5 unique  6 duplicate_ids  7 ready_index  8 leased_index  9 totals
--          10 dead  11 leases  12 clock  13 quarantined  14… ready lists
-- ARGV     –
-- Returns  {'<now (ms)> <scheduled> <overdue> <due of the first (ms) or -> <dead> <ready> <paused_due>
--          <the earliest due (ms) of the messages to be taken next, or -> <how many leases last>', then up
--          to 1,000 of all worker ids with a lease, after spaces; what was counted, joined by spaces,
--          or - for a key of another type};
--          what is paused and due is scheduled too, but neither overdue nor the first
-- Repeat   reads only
-- @include clock
-- @include record
-- @include tracking

local now = to_ms(now_us())
local ready, oldest = redis.call('LLEN', KEYS[13]), nil
for i = 14, #KEYS do
  ready = ready + redis.call('LLEN', KEYS[i])
  local id, message_id = read_label(redis.call('LINDEX', KEYS[i], -1) or '')
  if id then
    local _, _, due = read_tracked(select(2, find_tracked(READY_INDEX, id, message_id)))
    due = tonumber(due or 0)
    oldest = due > 0 and math.min(due, oldest or due) or oldest
  end
end
local first = redis.call('ZRANGE', KEYS[1], 0, 0, 'WITHSCORES')[2]
-- A lease that ended by Redis' clock, less the time for which it stood still in outages, was not extended.
local stood = read_whole(redis.pcall('HGET', KEYS[12], 'stood')) or 0
-- Numbers as one string: clients read many short replies slowly. A broken key of counters hides no queue.
local totals = redis.pcall('HGETALL', TOTALS)
return {
  table.concat({
    string.format('%.0f', now),
    redis.call('ZCARD', KEYS[1]),
    redis.call('ZCOUNT', KEYS[1], '-inf', now),
    first and tonumber(first) < PAUSED_OFFSET and first or '-',
    redis.call('HLEN', KEYS[10]),
    ready,
    redis.call('ZCARD', KEYS[4]),
    oldest and string.format('%.0f', oldest) or '-',
    redis.call('ZCOUNT', KEYS[11], string.format('%.0f', now - stood), '+inf'),
    unpack(redis.call('ZRANGE', KEYS[11], 0, 999)),
  }, ' '),
  table.concat(totals['err'] and {'-'} or totals, ' '),
}
