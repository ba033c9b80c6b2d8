-- When an entry is due: '+5' counts from now, '5' is absolute, both in ms. Rounded up, so that
-- nothing is early.
local function due_of(text, clock_us)
  local due = tonumber(text)
  if string.byte(text) == 43 then
    due = math.ceil(clock_us / 1000) + due
  end
  return due
end

-- Store a record and return the id under which it is found; nil when the same message is there
-- already (a call repeated after its reply was lost). This comes before any other write, and a
-- full server refuses it, so that nothing is half-stored.
local function put_record(entries, id, data, nonce)
  if redis.call('HEXISTS', entries, id .. '\0' .. nonce) == 1 then
    return nil
  end
  if redis.call('HSETNX', entries, id, data) == 1 then
    return id
  end
  local _, nonce_there = read_record(redis.call('HGET', entries, id))
  if nonce_there ~= nonce then
    -- The same task id sent twice on purpose, or a retry beside a redelivery: both run.
    id = id .. '\0' .. nonce
    if redis.call('HSETNX', entries, id, data) == 1 then
      return id
    end
  end
  return nil
end
