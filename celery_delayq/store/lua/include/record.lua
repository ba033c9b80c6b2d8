-- Read a record (see message.py): priority, message id, task and where the message begins; nil when
-- it is none.
local function read_record(data)
  return string.match(data or '', '^1 (%d+) (%S+) (%S*)\n(){')
end

-- Fixed width keeps the order of due.
local function due_text(due)
  return string.format('%015.0f', due)
end

-- The member of the index by task that belongs to an entry.
local function task_member(task, due, name)
  return task .. '\0' .. due_text(due) .. '\0' .. name
end

-- An entry whose task is paused when it is due is paused and due: it keeps its place behind all others,
-- with a score so much higher than its due, which is more than any due.
local PAUSED_OFFSET = 1e15

-- When an entry with that score is due (ms).
local function due_at(score)
  score = tonumber(score)
  return score >= PAUSED_OFFSET and score - PAUSED_OFFSET or score
end
