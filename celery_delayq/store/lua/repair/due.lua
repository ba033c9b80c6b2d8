-- Look at a batch of the schedule: each member must have a record. A repair makes a dead letter of
-- a member without a record, as dispatch/promote.lua does at its due.
--
-- KEYS     due  entries  next_due  dead  dead_at  totals  lanes
-- ARGV     queue  cursor
--          page_size: about how many to look at
--          repair: '1' to repair
-- Returns  {next cursor, looked at, {}, then for each kind {kind, found, repaired, some ids…}}
-- Repeat   finds what is left
-- Roles    operator
-- @include clock
-- @include types
-- @include record
-- @include dispatch/next_due
-- @include dead_letter
-- @include totals
-- @include repair/report

expect_types(FIRST.due, 'zset', 'hash')
expect_types(FIRST.dead, 'hash', 'zset')
local repair = ARGV.repair == '1'
local page = redis.call('ZSCAN', KEYS.due, ARGV.cursor, 'COUNT', ARGV.page_size)
for i = 1, #page[2], 2 do
  local id, due = page[2][i], tonumber(page[2][i + 1])
  if redis.call('HEXISTS', KEYS.entries, id) == 0 then
    note_drift('no_record', id, repair)
    if repair then
      -- Memory use stays, so a full server must accept the repair: see dispatch/promote.lua.
      redis.call('ZREM', KEYS.next_due, '')
      add_dead_letter(KEYS.dead, KEYS.dead_at, id, to_ms(now_us()), due_at(due), 'no record', '')
      redis.call('ZREM', KEYS.due, id)
      add_total(KEYS.totals, 'dead:corrupt', 1)
    end
  end
end
if repair and #found > 0 then
  plan_next_look(KEYS.next_due, ARGV.queue, KEYS.due, KEYS.lanes, now_us())
end
return report(page[1], #page[2] / 2)
