-- Delete all scheduled, ready and quarantined messages of a queue. Its dead letters and its leased
-- messages stay.
--
-- KEYS     due  entries  tasks  paused_due  held  lanes  unique  duplicate_ids  ready_index
--          leased_index  totals  next_due  queues  wake  quarantined  deliveries  pace  dead  leases
--          ready_lists…
-- ARGV     queue
--          queue_deleted: '1' when the queue itself was deleted
--          most_leased: most leased messages whose unique keys the script looks at; with more, all
--            unique keys and duplicate_ids stay
-- Returns  {number scheduled, number quarantined, number ready}, then 1 if unique keys are left to
--          schedule/forget_unowned.lua
-- Repeat   {0, 0, 0}
-- Roles    operator
-- @include clock
-- @include types
-- @include tracking
-- @include totals

expect_types(FIRST.next_due, 'zset', 'hash')
expect_all(FIRST.ready_lists, 'list')
local count = {redis.call('ZCARD', DUE), redis.call('LLEN', KEYS.quarantined), 0}
local lists = {select(FIRST.ready_lists, unpack(KEYS))}
for _, list in ipairs(lists) do
  count[3] = count[3] + redis.call('LLEN', list)
end
-- Leased messages keep their unique keys. All other unique keys are deleted.
local count_to_read = redis.call('HLEN', LEASED_INDEX) <= tonumber(ARGV.most_leased)
local duplicate_ids, kept = {}, {}
local running = count_to_read and redis.call('HGETALL', LEASED_INDEX) or {}
for i = 1, #running, 2 do
  local id, second = string.match(running[i], '^([^%z]*)(.*)$')
  local _, message_id, _, unique = read_tracked(running[i + 1])
  if second ~= '' then
    duplicate_ids[#duplicate_ids + 1] = running[i]
  end
  if unique and string.sub(unique, 1, 1) == 'd' then
    local key = string.sub(unique, 2)
    local owner, owner_message_id = read_owner(key)
    if owner == id and owner_message_id == message_id then
      kept[key] = redis.call('HGET', UNIQUE, key)
    end
  end
end
redis.call(
  'UNLINK', DUE, ENTRIES, TASKS, PAUSED_DUE, HELD, LANES, READY_INDEX, KEYS.wake, KEYS.quarantined, KEYS.pace,
    unpack(lists))
if count_to_read then
  redis.call('UNLINK', UNIQUE, DUPLICATE_IDS)
else
  count[4] = 1
end
redis.call('ZREM', KEYS.next_due, ARGV.queue)
for _, name in ipairs(duplicate_ids) do
  list_duplicate(name)
end
for key, owner in pairs(kept) do
  redis.call('HSET', UNIQUE, key, owner)
end
local ready = count[2] + count[3]
add_total(TOTALS, 'purged', count[1] + ready)
add_total(TOTALS, 'ready', count_others(TOTALS, ready) - ready)
if ARGV.queue_deleted == '1' then
  if redis.call('EXISTS', KEYS.dead) == 0 then
    -- The queue has no dead letters, which commands find through the registry.
    redis.call('HDEL', KEYS.queues, ARGV.queue)
    if redis.call('EXISTS', KEYS.leases) == 0 then
      redis.call('UNLINK', TOTALS)
    end
  end
  redis.call('UNLINK', KEYS.deliveries)
end
return count
