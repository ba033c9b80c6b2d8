-- Return the number of messages of a queue in each state, at one moment, and the processes with
-- leases.
--
-- KEYS     due  entries  tasks  paused_due  held  lanes  unique  duplicate_ids  ready_index
--          leased_index  totals  dead  leases  clock  quarantined  ready_lists…
-- ARGV     none
-- Returns  {'<now (ms)> <scheduled> <overdue> <first due (ms) or -> <dead> <ready> <paused_due>
--          <in lanes> <earliest due (ms) of the next message of each ready list, or ->
--          <leases not ended>', then up to 1,000 worker ids with a lease, after spaces; names and
--          values of the counters, joined by spaces, or - for a key of another type}; held entries
--          count as scheduled, but not as overdue or first
-- Repeat   reads only
-- Roles    exporter
-- @include clock
-- @include record
-- @include tracking

local now = to_ms(now_us())
local ready, oldest = redis.call('LLEN', KEYS.quarantined), nil
for i = FIRST.ready_lists, #KEYS do
  ready = ready + redis.call('LLEN', KEYS[i])
  local id, message_id = read_label(redis.call('LINDEX', KEYS[i], -1) or '')
  if id then
    local _, _, due = read_tracked(select(2, find_tracked(READY_INDEX, id, message_id)))
    due = tonumber(due or 0)
    oldest = due > 0 and math.min(due, oldest or due) or oldest
  end
end
local first = redis.call('ZRANGE', KEYS.due, 0, 0, 'WITHSCORES')[2]
-- A lease counts as ended by lease time: Redis' clock less the time for which it stood still.
local stood = read_whole(redis.pcall('HGET', KEYS.clock, 'stood')) or 0
-- Numbers are one string, since clients read many short replies slowly. A key of another type in
-- place of the counters raises no error.
local totals = redis.pcall('HGETALL', TOTALS)
return {
  table.concat({
    string.format('%.0f', now),
    redis.call('ZCARD', KEYS.due),
    redis.call('ZCOUNT', KEYS.due, '-inf', now),
    first and tonumber(first) < PAUSED_OFFSET and first or '-',
    redis.call('HLEN', KEYS.dead),
    ready,
    redis.call('ZCARD', KEYS.paused_due),
    redis.call('ZCARD', KEYS.held),
    oldest and string.format('%.0f', oldest) or '-',
    redis.call('ZCOUNT', KEYS.leases, string.format('%.0f', now - stood), '+inf'),
    unpack(redis.call('ZRANGE', KEYS.leases, 0, 999)),
  }, ' '),
  table.concat(totals['err'] and {'-'} or totals, ' '),
}
