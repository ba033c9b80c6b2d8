-- Count in the script that does the counted work. celery_delayq/model/totals.py explains the
-- counters. A key of another type counts nothing and raises no error: fsck reports it.
--
-- Defines  add_total  count_others
-- Expects  clock: now_us

-- Add to one counter.
local function add_total(totals, name, number)
  -- The text '1', since Redis formats numbers slowly.
  local text = number == 1 and '1' or number
  if number ~= 0 and redis.pcall('HINCRBY', totals, name, text) == number then
    -- The first count of this counter, perhaps of all counters.
    redis.pcall('HSETNX', totals, 'epoch', string.format('%.0f', now_us()))
  end
end

-- Count the messages that other programs have added to the ready lists or taken from them. Scripts
-- have made 'pushed' + 'promoted' + 'ready' messages ready that were not taken since; the first two
-- are counters. 'there' is the number of ready and quarantined messages. Returns how many messages
-- other programs have added, less those that they have taken.
local function count_others(totals, there)
  local known = redis.pcall('HMGET', totals, 'pushed', 'promoted', 'ready')
  local others = there
  for i = 1, 3 do
    others = others - (tonumber(known[i]) or 0) -- anybody may have written it
  end
  if others > 0 then
    add_total(totals, 'accepted', others)
  elseif others < 0 then
    add_total(totals, 'taken', -others)
  end
  return others
end
