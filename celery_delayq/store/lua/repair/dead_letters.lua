-- Look at a batch of dead letters, or of times of death: each must have the other. A repair adds
-- the time that the dead letter's header has, and removes a time without a dead letter.
--
-- KEYS     dead  dead_at
-- ARGV     looks_at: 1 to look through dead, 2 through dead_at
--          cursor
--          page_size: about how many to look at
--          repair: '1' to repair
-- Returns  {next cursor, looked at, {}, then for each kind {kind, found, repaired, some ids…}}
-- Repeat   finds what is left
-- Roles    operator
-- @include clock
-- @include types
-- @include byte_limit
-- @include scan
-- @include dead_letter
-- @include repair/report

expect_types(FIRST.dead, 'hash', 'zset')
local repair = ARGV.repair == '1'
let_repairs_pass(repair, KEYS.dead_at)
local cursor, page
if ARGV.looks_at == '1' then
  cursor, page = scan_hash(KEYS.dead, ARGV.cursor, tonumber(ARGV.page_size))
  for i = 1, #page, 2 do
    local id = page[i]
    if not redis.call('ZSCORE', KEYS.dead_at, id) then
      local died = died_at(page[i + 1]) or to_ms(now_us())
      note_drift('unlisted_dead_letter', id, repair, 'ZADD', KEYS.dead_at, died, id)
    end
  end
else
  cursor, page = unpack(redis.call('ZSCAN', KEYS.dead_at, ARGV.cursor, 'COUNT', ARGV.page_size))
  for i = 1, #page, 2 do
    local id = page[i]
    if redis.call('HEXISTS', KEYS.dead, id) == 0 then
      note_drift('no_dead_letter', id, repair, 'ZREM', KEYS.dead_at, id)
    end
  end
end
return report(cursor, #page / 2)
