-- Forget all scheduled and ready messages of a queue, and what waits to be delivered alone; its
-- dead letters stay, and what processes hold.
--
-- KEYS     1 due  2 entries  3 tasks  4 paused_due  5 unique  6 duplicate_ids  7 ready_index
--          8 leased_index  9 totals  10 next_due  11 queues  12 wake  13 quarantined  14 deliveries
--          15 pace  16 dead  17 leases  18… ready lists
-- ARGV     1 queue  2 '1' when the queue itself was deleted  3 of how many messages that processes hold
--          to look at the unique keys; if there are more, all unique keys stay, and duplicate_ids
-- Returns  {how many were scheduled, how many waited to be delivered alone, how many were ready}, and
--          1 where unique keys are left to schedule/forget_unowned.lua
-- Repeat   {0, 0, 0}
-- @include types
-- @include tracking
-- @include totals

expect_types(10, 'zset', 'hash')
expect_all(18, 'list')
local count = {redis.call('ZCARD', DUE), redis.call('LLEN', KEYS[13]), 0}
local lists = {select(18, unpack(KEYS))}
for _, list in ipairs(lists) do
  count[3] = count[3] + redis.call('LLEN', list)
end
-- What processes hold stays: no more than that, with the unique keys that it has.
local few = redis.call('HLEN', LEASED_INDEX) <= tonumber(ARGV[3])
local duplicate_ids, kept = {}, {}
local running = few and redis.call('HGETALL', LEASED_INDEX) or {}
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
  'UNLINK', DUE, ENTRIES, TASKS, PAUSED_DUE, READY_INDEX, KEYS[12], KEYS[13], KEYS[15], unpack(lists))
if few then
  redis.call('UNLINK', UNIQUE, DUPLICATE_IDS)
else
  count[4] = 1
end
redis.call('ZREM', KEYS[10], ARGV[1])
for _, name in ipairs(duplicate_ids) do
  list_duplicate(name)
end
for key, owner in pairs(kept) do
  redis.call('HSET', UNIQUE, key, owner)
end
local ready = count[2] + count[3]
add_total(TOTALS, 'purged', count[1] + ready)
add_total(TOTALS, 'ready', count_others(TOTALS, ready) - ready)
if ARGV[2] == '1' then
  if redis.call('EXISTS', KEYS[16]) == 0 then
    -- Else nobody would find its dead letters.
    redis.call('HDEL', KEYS[11], ARGV[1])
    if redis.call('EXISTS', KEYS[17]) == 0 then
      redis.call('UNLINK', TOTALS)
    end
  end
  redis.call('UNLINK', KEYS[14])
end
return count
