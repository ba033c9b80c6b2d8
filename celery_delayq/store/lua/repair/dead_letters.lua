-- Look at a batch of the dead letters, or of when they died: each must have the other. Repairing
-- lists a dead letter by what it says itself, and removes a moment without a dead letter.
--
-- KEYS     1 dead  2 dead_at
-- ARGV     1 which of KEYS to look through  2 cursor  3 about how many to look at  4 '1' to repair
-- Returns  {next cursor, looked at, {}, then for each kind {kind, found, repaired, some ids…}}
-- Repeat   finds what is left
-- @include clock
-- @include types
-- @include room
-- @include scan
-- @include dead_letter
-- @include repair/report

expect_types(1, 'hash', 'zset')
local repair = ARGV[4] == '1'
let_repairs_pass(repair, KEYS[2])
local cursor, page
if ARGV[1] == '1' then
  cursor, page = scan_hash(KEYS[1], ARGV[2], tonumber(ARGV[3]))
  for i = 1, #page, 2 do
    local id = page[i]
    if not redis.call('ZSCORE', KEYS[2], id) then
      local died = died_at(page[i + 1]) or to_ms(now_us())
      note('unlisted_dead_letter', id, repair, 'ZADD', KEYS[2], died, id)
    end
  end
else
  cursor, page = unpack(redis.call('ZSCAN', KEYS[2], ARGV[2], 'COUNT', ARGV[3]))
  for i = 1, #page, 2 do
    local id = page[i]
    if redis.call('HEXISTS', KEYS[1], id) == 0 then
      note('no_dead_letter', id, repair, 'ZREM', KEYS[2], id)
    end
  end
end
return tell(cursor, #page / 2)
