-- Look at a batch of the schedule: each member must have a record. Repairing makes dead letters of
-- those without one, as dispatch/promote.lua would when they are due.
--
-- KEYS     1 due  2 entries  3 next_due  4 dead  5 dead_at  6 totals
-- ARGV     1 queue  2 cursor  3 about how many to look at  4 '1' to repair
-- Returns  {next cursor, looked at, {}, then for each kind {kind, found, repaired, some ids…}}
-- Repeat   finds what is left
-- @include clock
-- @include types
-- @include record
-- @include dispatch/next_due
-- @include dead_letter
-- @include totals
-- @include repair/report

expect_types(1, 'zset', 'hash')
expect_types(4, 'hash', 'zset')
local repair = ARGV[4] == '1'
local page = redis.call('ZSCAN', KEYS[1], ARGV[2], 'COUNT', ARGV[3])
for i = 1, #page[2], 2 do
  local id, due = page[2][i], tonumber(page[2][i + 1])
  if redis.call('HEXISTS', KEYS[2], id) == 0 then
    note('no_record', id, repair)
    if repair then
      -- A dead letter takes its place, so a full server must let it pass: see dispatch/promote.lua.
      redis.call('ZREM', KEYS[3], '')
      add_dead_letter(KEYS[4], KEYS[5], id, to_ms(now_us()), due_at(due), 'no record', '')
      redis.call('ZREM', KEYS[1], id)
      add_total(KEYS[6], 'dead:corrupt', 1)
    end
  end
end
if repair and #found > 0 then
  look_again(KEYS[3], ARGV[1], KEYS[1])
end
return tell(page[1], #page[2] / 2)
