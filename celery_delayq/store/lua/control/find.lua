-- Find messages by id.
--
-- KEYS     due  entries  tasks  paused_due  held  lanes  unique  duplicate_ids  ready_index
--          leased_index  totals
-- ARGV     most_names: most names to look at
--          start: where to start in the first id, see include/find.lua
--          ids…
-- Returns  {number of finished ids, where to continue in the next id, then for each message with
--          these ids: {name, state, score, value}}. State is 's' scheduled, 'w' ready or 'r'
--          leased. Value is the record for 's', else message id, due, unique key, task and
--          worker id
-- Repeat   reads only
-- Roles    worker
-- @include byte_limit
-- @include record
-- @include tracking
-- @include find

names_left = tonumber(ARGV.most_names)
local reply, from = {0, '['}, ARGV.start
for i = FIRST.ids, #ARGV do
  if i > 3 and (names_left <= 0 or bytes_left <= 0) then
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
