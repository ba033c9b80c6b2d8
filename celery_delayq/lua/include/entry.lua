-- When an entry is due: '+5' counts from now, '5' is absolute, both in ms.
local function due_of(text, now)
  local due = tonumber(text)
  if string.byte(text) == 43 then
    due = now + due
  end
  return due
end

-- Store an entry; false when the same message is there already (a call repeated after its
-- reply was lost). The first write is one that a full server refuses, so that nothing is
-- half-stored.
local function put_entry(due_key, entries, tasks, id, due, data, record)
  if redis.call('HSETNX', entries, id, data) == 0 then
    local there = read_record(redis.call('HGET', entries, id))
    if there and there.nonce == record.nonce then
      return false
    end
    -- The same task id sent twice on purpose, or a retry beside a redelivery: both run.
    id = id .. '\0' .. record.nonce
    if redis.call('HSETNX', entries, id, data) == 0 then
      return false
    end
  end
  redis.call('ZADD', due_key, due, id)
  redis.call('ZADD', tasks, 0, task_member(record.task, due, id))
  return true
end
