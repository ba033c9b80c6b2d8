-- Find messages by id.
--
-- KEYS     1 due  2 entries  3 tasks  4 paused_due  5 unique  6 duplicate_ids  7 ready_index
--          8 leased_index  9 totals
-- ARGV     1 most names to look at  2 where to start in the first id, see include/find.lua  3… ids
-- Returns  {number of finished ids, where to continue in the next id, then for each message with
--          these ids: {name, 's' scheduled, 'w' ready or 'r' held by a process, its score, the
--          record or, for 'w' and 'r', message id, due, unique key, task and worker id}}
-- Repeat   reads only
-- @include room
-- @include record
-- @include tracking
-- @include find

names_left = tonumber(ARGV[1])
local reply, from = {0, '['}, ARGV[2]
for i = 3, #ARGV do
  if i > 3 and (names_left <= 0 or room <= 0) then
    break
  end
  local found, more = find_some(ARGV[i], from)
  for _, one in ipairs(found) do
    reply[#reply + 1] = {
      one[1], one[2], redis.call('ZSCORE', DUE, one[1]) or '', one[3]}
  end
  if more then
    reply[2] = more
    break
  end
  reply[1], from = reply[1] + 1, '['
end
return reply
