-- Forget messages that were cancelled while they were ready.
--
-- Defines  forget_cancelled
-- Expects  totals: add_total
--          tracking: TOTALS  READY_INDEX  ENTRIES  LEASED_INDEX  DUPLICATE_IDS  read_tracked
--            release_key

-- Forget a ready message. 'dropped' is how many copies were removed from the ready lists.
local function forget_cancelled(name, value, dropped)
  add_total(TOTALS, string.sub(value, 1, 2) == '!!' and 'replaced' or 'cancelled', dropped)
  add_total(TOTALS, 'ready', -dropped)
  redis.call('HDEL', READY_INDEX, name)
  if redis.call('HEXISTS', ENTRIES, name) == 0
    and redis.call('HEXISTS', LEASED_INDEX, name) == 0 then
    redis.call('ZREM', DUPLICATE_IDS, name)
  end
  local _, message_id, _, unique = read_tracked(value)
  if unique then
    release_key(unique, string.match(name, '^[^%z]*'), message_id)
  end
end
