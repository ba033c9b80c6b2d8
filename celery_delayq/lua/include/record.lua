-- Read a record (see message.py): priority, nonce, task and where the message begins; nil when
-- it is none.
local function read_record(data)
  return string.match(data or '', '^1 (%d+) (%S+) (%S*)\n(){')
end

-- The member of the index by task that belongs to an entry. Fixed width keeps the order of due.
local function task_member(task, due, id)
  return task .. '\0' .. string.format('%015.0f', due) .. '\0' .. id
end
