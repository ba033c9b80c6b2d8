-- Return which of many queues may have messages with some ids. Nearly all queues have none.
--
-- KEYS     keys_by_id…: of each queue: entries, ready_index, leased_index, duplicate_ids
-- ARGV     ids…
-- Returns  the place of each such queue, from 1; also of a queue that has several messages with
--          any id, or a key of another type, which control/find.lua names
-- Repeat   reads only
-- Roles    worker

local function may_have(first)
  if redis.call('EXISTS', KEYS[first + 3]) == 1 then
    return true
  end
  for i = first, first + 2 do
    for _, id in ipairs(ARGV) do
      if redis.pcall('HEXISTS', KEYS[i], id) ~= 0 then
        return true
      end
    end
  end
  return false
end

local places = {}
for first = FIRST.keys_by_id, #KEYS, 4 do
  if may_have(first) then
    places[#places + 1] = (first + 3) / 4
  end
end
return places
