-- Read records, labels of messages and members of the index by task.
--
-- Defines  read_record  message_in  due_text  is_before  task_member  PAUSED_OFFSET  due_at
--            read_label  read_unique

-- Read a record (see model/envelope.py): priority, message id, task and where the message begins;
-- nil when the data are no record. A large message is its own record, and its task stands behind
-- its label.
local function read_record(data)
  local priority, message_id, task, start = string.match(data or '', '^1 (%d+) (%S+) (%S*)\n(){')
  if not priority then
    message_id, task = string.match(data or '',
      '^{"properties": {"delayq": {"label": "%S* (%S+) %d+ %S+", "task": "([^%s"]*)"')
    if message_id then
      return '0', message_id, task, 1
    end
  end
  return priority, message_id, task, start
end

-- The message in a record or in a leased value. Lua hashes each byte of each text that it makes,
-- so another one of a large message takes as long as to store it twice.
local function message_in(data, start)
  return start == 1 and data or string.sub(data, start)
end

-- Fixed width keeps the order of due.
local function due_text(due)
  return string.format('%015.0f', due)
end

-- Whether one text is before another, by bytes as for Redis: '<' would use the locale of the
-- server.
local function is_before(one, other)
  for i = 1, math.min(#one, #other) do
    local left, right = string.byte(one, i), string.byte(other, i)
    if left ~= right then
      return left < right
    end
  end
  return #one < #other
end

-- The member of the index by task that belongs to an entry.
local function task_member(task, due, name)
  return task .. '\0' .. due_text(due) .. '\0' .. name
end

-- An entry whose task is paused when it is due is paused and due: it keeps its place behind all
-- others, with a score so much higher than its due, which is more than any due.
local PAUSED_OFFSET = 1e15

-- When an entry with that score is due (ms).
local function due_at(score)
  score = tonumber(score)
  return score >= PAUSED_OFFSET and score - PAUSED_OFFSET or score
end

-- What scripts have to know of a message in every state stands in its first bytes (see
-- model/envelope.py): id, message id, for how long after its due it may start (ms, 0 for ever) and
-- its unique key, behind a character for its scope, or '-'. So they parse no JSON. Returns nil for
-- what has none: messages of stock producers, and those that were sent to run at once.
--
-- The time has a leading 0, and is returned as a negative number, for a tick of a periodic entry
-- that was scheduled ahead: dispatch/promote.lua drops it when it is later, and nobody dispatched
-- when it was due.
local function read_label(message, start)
  local id, message_id, skip, unique = string.match(
    message, '^{"properties": {"delayq": {"label": "(%S*) (%S+) (%d+) (%S+)"', start or 1)
  if id and string.find(id, '%', 1, true) then
    id = string.gsub(id, '%%(%x%x)', function(hex) return string.char(tonumber(hex, 16)) end)
  end
  if skip and string.byte(skip) == 48 then
    return id, message_id, -tonumber(skip), unique
  end
  return id, message_id, tonumber(skip), unique
end

-- Only its unique key.
local function read_unique(message, start)
  return string.match(
    message, '^{"properties": {"delayq": {"label": "%S* %S+ %d+ (%S+)"', start or 1)
end
