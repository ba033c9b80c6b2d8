-- Periodic entries. The first line of a record is its state: see celery_delayq/periodic/entries.py.
--
-- Defines  as_expected  look_at_entry

-- The record of an entry if it begins as expected, else nil.
local function as_expected(periodic, name, line)
  local data = redis.call('HGET', periodic, name)
  if data and (string.sub(data, 1, #line + 1) == line .. '\n' or data == line) then
    return data
  end
  return nil
end

-- Set when to look at an entry next (ms), '' for never.
local function look_at_entry(periodic_at, name, at)
  if at == '' then
    redis.call('ZREM', periodic_at, name)
  else
    redis.call('ZADD', periodic_at, at, name)
  end
end
