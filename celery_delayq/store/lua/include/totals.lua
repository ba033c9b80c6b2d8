-- Counting, in the script that does what is counted: celery_delayq/model/totals.py says what the
-- counters mean. A key of another type counts nothing, which is no error: fsck tells of it.
--
-- Defines  add_total  count_others

-- Count some more of one kind.
local function add_total(totals, name, number)
  -- As a text where it is one: Redis takes long to print a number.
  local text = number == 1 and '1' or number
  if number ~= 0 and redis.pcall('HINCRBY', totals, name, text) == number then
    -- The first of its kind, perhaps of all.
    local time = redis.call('TIME')
    redis.pcall('HSETNX', totals, 'epoch', time[1] .. string.format('%06d', time[2]))
  end
end

-- Others fill and empty the ready lists too. What scripts have made ready, and was not taken since,
-- is 'pushed' + 'promoted' + 'ready'; the first two are counters. Returns how many messages others
-- have added, less those that they have taken, when 'there' are ready or quarantined.
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
