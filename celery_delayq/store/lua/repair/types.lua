-- Delete keys of another type, without which nothing is dispatched.
--
-- KEYS     1 next_due  2 lease_ends  3 queues  4 clock  5 control
-- ARGV     –
-- Returns  for each key that it deleted, one after the other, its place and what it was
-- Repeat   finds none

local wanted = {
  [KEYS[1]] = 'zset', [KEYS[2]] = 'zset', [KEYS[3]] = 'hash', [KEYS[4]] = 'hash', [KEYS[5]] = 'hash'}
local deleted = {}
for place, key in ipairs(KEYS) do
  local found = redis.call('TYPE', key)['ok']
  if found ~= wanted[key] and found ~= 'none' then
    redis.call('UNLINK', key)
    deleted[#deleted + 1], deleted[#deleted + 2] = place, found
  end
end
return deleted
