-- Return the places of the keys that exist: their queues have messages that may be taken.
--
-- KEYS     lists…: wake (also ready and quarantined lists, lanes and lanes_wake), of any queues
-- ARGV     none
-- Returns  {place of each list that exists…}
-- Repeat   the same
-- Roles    worker

local there = {}
for first = FIRST.lists, #KEYS, 100 do
  local last = math.min(first + 99, #KEYS)
  if redis.call('EXISTS', unpack(KEYS, first, last)) > 0 then
    for place = first, last do
      if redis.call('EXISTS', KEYS[place]) == 1 then
        there[#there + 1] = place
      end
    end
  end
end
return there
