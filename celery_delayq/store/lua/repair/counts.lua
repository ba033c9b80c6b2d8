-- Look at counts of deliveries whose messages were not found: they are stale when nobody has
-- counted since.
--
-- KEYS     1 deliveries
-- ARGV     1 '1' to repair  2… for each message: its digest, its counts as they were
-- Returns  {0, looked at, {}, then {kind, found, repaired, some digests…}}
-- Repeat   finds what is left
-- @include repair_report

for i = 2, #ARGV, 2 do
  if redis.call('HGET', KEYS[1], ARGV[i]) == ARGV[i + 1] then
    note('stale_count', ARGV[i], ARGV[1] == '1')
    if ARGV[1] == '1' then
      redis.call('HDEL', KEYS[1], ARGV[i])
    end
  end
end
return tell('0', (#ARGV - 1) / 2)
