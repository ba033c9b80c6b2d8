-- Read a record (see message.py); nil when it is none.
local function read_record(data)
  if not data then
    return nil
  end
  local priority, nonce, task, start = string.match(data, '^1 (%d) (%S+) (%S*)\n(){')
  if not priority then
    return nil
  end
  return {priority = priority, nonce = nonce, task = task, message = string.sub(data, start)}
end

-- The member of the index by task that belongs to an entry. Fixed width keeps the order of due.
local function task_member(task, due, id)
  return task .. '\0' .. string.format('%015.0f', due) .. '\0' .. id
end
