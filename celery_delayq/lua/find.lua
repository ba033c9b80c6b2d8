-- Tell where entries are.
--
-- KEYS     1 due  2 entries  3 tasks  4 parked  5 unique  6 twins  7 waiting  8 running
-- ARGV     1… ids
-- Returns  for each message with such an id: {name, 's' scheduled, 'w' waits to be handed out or
--          'r' held by a process, its score, what is known: the record or, for 'w' and 'r', nonce,
--          due, unique key, task and incarnation}
-- Repeat   reads only
-- @include state
-- @include find

local reply = {}
for _, id in ipairs(ARGV) do
  for _, one in ipairs(find_all(id)) do
    reply[#reply + 1] = {
      one[1], one[2], redis.call('ZSCORE', DUE, one[1]) or '', one[3]}
  end
end
return reply
