-- Look at a batch of the periodic entries: each that is to be fired must be looked at. Repairing has
-- it looked at now, which does no harm.
--
-- KEYS     1 periodic  2 periodic_at
-- ARGV     1 cursor  2 about how many to look at  3 '1' to repair
-- Returns  {next cursor, looked at, {}, then for each kind {kind, found, repaired, some names…}}
-- Repeat   finds what is left
-- @include clock
-- @include types
-- @include room
-- @include scan
-- @include repair/report

expect_types(1, 'hash', 'zset')
local repair = ARGV[3] == '1'
let_repairs_pass(repair, KEYS[2])
local cursor, page = scan_hash(KEYS[1], ARGV[1], tonumber(ARGV[2]))
for i = 1, #page, 2 do
  local name = page[i]
  local tick, state = string.match(
    page[i + 1], '^1 %S+ %-?%d+ (%-?%d*) %-?%d* %d+ (%l+)\n')
  if not tick then
    note('unreadable_periodic', name, false)
  elseif state == 'on' and not redis.call('ZSCORE', KEYS[2], name) then
    note('unlisted_periodic', name, repair, 'ZADD', KEYS[2], to_ms(now_us()), name)
  end
end
return tell(cursor, #page / 2)
