-- Look at a batch of the periodic entries: each enabled entry must have a planned look. A repair
-- plans a look now, which does no harm.
--
-- KEYS     periodic  periodic_at
-- ARGV     cursor
--          page_size: about how many to look at
--          repair: '1' to repair
-- Returns  {next cursor, looked at, {}, then for each kind {kind, found, repaired, some names…}}
-- Repeat   finds what is left
-- Roles    operator
-- @include clock
-- @include types
-- @include byte_limit
-- @include scan
-- @include repair/report

expect_types(FIRST.periodic, 'hash', 'zset')
local repair = ARGV.repair == '1'
let_repairs_pass(repair, KEYS.periodic_at)
local cursor, page = scan_hash(KEYS.periodic, ARGV.cursor, tonumber(ARGV.page_size))
for i = 1, #page, 2 do
  local name = page[i]
  local tick, state = string.match(
    page[i + 1], '^1 %S+ %-?%d+ (%-?%d*) %-?%d* %d+ (%l+)\n')
  if not tick then
    note_drift('unreadable_periodic', name, false)
  elseif state == 'on' and not redis.call('ZSCORE', KEYS.periodic_at, name) then
    note_drift('unlisted_periodic', name, repair, 'ZADD', KEYS.periodic_at, to_ms(now_us()), name)
  end
end
return report(cursor, #page / 2)
