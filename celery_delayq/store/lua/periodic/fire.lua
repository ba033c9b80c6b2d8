-- Schedule ticks of periodic entries. An entry must have the expected state, so only the first
-- caller schedules a tick.
--
-- KEYS     due  entries  tasks  paused_due  held  lanes  unique  duplicate_ids  ready_index
--          leased_index  totals  next_due  queues  wake  lanes_wake  limits  periodic  periodic_at  ticks
--          ready_lists…: all ready lists, if any message has a unique key
-- ARGV     queue  layout  wake_channel
--          periodic_entries…: for each entry: name, expected first line, new first line, when to
--            look at the entry next (ms, '' for never), a line and a time for the case that no
--            message was stored since another one has its unique key, number of messages; for each
--            message: id, due (ms), place of its ready list in KEYS, record, policy if its unique
--            key is taken (see include/unique_policy.lua)
-- Returns  for each entry '-' if it has another state, else the codes of its messages, as in
--          schedule/add.lua
-- Repeat   '-'
-- Roles    worker, dispatcher
-- @include clock
-- @include types
-- @include record
-- @include tracking
-- @include totals
-- @include wake
-- @include entry_store
-- @include unique_policy
-- @with limits
-- @include limits/lanes
-- @end
-- @include dispatch/next_due
-- @include add_batch
-- @include periodic

local time_us = now_us()
expect_types(FIRST.periodic, 'hash', 'zset')
begin_batch(time_us, 0, FIRST.ready_lists)
local answers = {}
local outcomes = {scheduled = 0, overlap = 0, duplicate = 0}
local OUTCOME = {d = 'duplicate', K = 'overlap', E = 'overlap'}
local i = FIRST.periodic_entries
while i <= #ARGV do
  local name, number = ARGV[i], tonumber(ARGV[i + 6])
  local data = as_expected(KEYS.periodic, name, ARGV[i + 1])
  local codes, refused = {}, number > 0
  if data then
    for j = i + 7, i + 6 + 5 * number, 5 do
      local due, list = due_of_text(ARGV[j + 1], time_us), KEYS[tonumber(ARGV[j + 2])]
      local code = store_message(ARGV[j], due, list, ARGV[j + 3], ARGV[j + 4])
      codes[#codes + 1] = code
      refused = refused and (code == 'K' or code == 'E')
    end
    -- Written before the entry's state, so no tick is lost.
    write_batch()
    local line, at = ARGV[i + 2], ARGV[i + 3]
    if refused then
      line, at = ARGV[i + 4], ARGV[i + 5]
    end
    -- An unchanged line means that the tick waits for the task of an earlier tick, and is tried
    -- again.
    for _, code in ipairs(line ~= ARGV[i + 1] and codes or {}) do
      local outcome = OUTCOME[code] or 'scheduled'
      outcomes[outcome] = outcomes[outcome] + 1
    end
    redis.call('HSET', KEYS.periodic, name, line .. string.sub(data, #ARGV[i + 1] + 1))
    look_at_entry(KEYS.periodic_at, name, at)
  end
  answers[#answers + 1] = data and table.concat(codes) or '-'
  i = i + 7 + 5 * number
end
end_batch(KEYS.next_due, KEYS.queues, ARGV.queue, ARGV.layout, ARGV.wake_channel, 'accepted')
for outcome, number in pairs(outcomes) do
  add_total(KEYS.ticks, outcome, number)
end
return answers
