-- Delete keys of another type that stop dispatching.
--
-- KEYS     next_due  lease_ends  queues  clock  control  limits  permits  slots  blocked_lanes
--          freed_lanes
-- ARGV     none
-- Returns  for each deleted key, one after the other, its place and its type
-- Repeat   finds none
-- Roles    worker, dispatcher

local wanted = {
  [KEYS.next_due] = 'zset', [KEYS.lease_ends] = 'zset', [KEYS.queues] = 'hash',
    [KEYS.clock] = 'hash', [KEYS.control] = 'hash', [KEYS.limits] = 'hash', [KEYS.permits] = 'zset',
    [KEYS.slots] = 'zset', [KEYS.blocked_lanes] = 'zset', [KEYS.freed_lanes] = 'zset'}
local deleted = {}
for place, key in ipairs(KEYS) do
  local found = redis.call('TYPE', key)['ok']
  if found ~= wanted[key] and found ~= 'none' then
    redis.call('UNLINK', key)
    deleted[#deleted + 1], deleted[#deleted + 2] = place, found
  end
end
return deleted
