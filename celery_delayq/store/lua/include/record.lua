-- Read records and labels of messages, and write members of the index by task.
--
-- Defines  read_record  message_in  due_text  is_before  task_member  PAUSED_OFFSET  due_at
--            read_label  read_unique  read_lane

-- Read a record (see model/envelope.py). Returns priority, message id, task and the place where the
-- message begins; nil if the data are no record. A large message is its own record: its task
-- follows its label.
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

-- The message in a record or in a leased value. Lua hashes each byte of a new string, so a copy of
-- a large message costs as much time as a second write.
local function message_in(data, start)
  return start == 1 and data or string.sub(data, start)
end

-- A due as a text. The fixed width keeps the order of dues.
local function due_text(due)
  return string.format('%015.0f', due)
end

-- Whether one text is before another. Compares bytes, as Redis does; '<' uses the server's locale.
local function is_before(one, other)
  for i = 1, math.min(#one, #other) do
    local left, right = string.byte(one, i), string.byte(other, i)
    if left ~= right then
      return left < right
    end
  end
  return #one < #other
end

-- The member of an entry in the index by task.
local function task_member(task, due, name)
  return task .. '\0' .. due_text(due) .. '\0' .. name
end

-- An entry that is due while its task is paused is "paused and due". Its score is its due plus this
-- offset (ms). The offset is larger than any due, so the entry stands behind all others.
local PAUSED_OFFSET = 1e15

-- The due (ms) of an entry with this score.
local function due_at(score)
  score = tonumber(score)
  return score >= PAUSED_OFFSET and score - PAUSED_OFFSET or score
end

-- Read the label in the first bytes of a message (see model/envelope.py), so that scripts parse no
-- JSON. Returns id, message id, skip and unique key. Skip is how long after its due a message may
-- start (ms, 0 for no limit). The unique key follows a character for its scope; '-' is no key. Also
-- returns the place behind the label. Returns nil for a message without a label: stock producers
-- send these, and a message that is sent to run at once has none.
--
-- A tick of a periodic entry that was scheduled ahead has a skip with a leading 0, which is
-- returned as a negative number. dispatch/promote.lua drops the tick if it is later than that and
-- no dispatcher ran when it was due.
local function read_label(message, start)
  local id, message_id, skip, unique, behind = string.match(
    message, '^{"properties": {"delayq": {"label": "(%S*) (%S+) (%d+) (%S+)"()', start or 1)
  if id and string.find(id, '%', 1, true) then
    id = string.gsub(id, '%%(%x%x)', function(hex) return string.char(tonumber(hex, 16)) end)
  end
  if skip and string.byte(skip) == 48 then
    return id, message_id, -tonumber(skip), unique, behind
  end
  return id, message_id, tonumber(skip), unique, behind
end

-- Read only the unique key of a label.
local function read_unique(message, start)
  return string.match(
    message, '^{"properties": {"delayq": {"label": "%S* %S+ %d+ (%S+)"', start or 1)
end

-- Read the lane of a message of a task with a limit (see include/limits/lanes.lua), and the time at which
-- the message expires (ms, 0 for never). 'behind' is the place behind its label. Returns nil for
-- any other message. A lane is "<limit>:<key>", up to 500 printable ASCII characters without quotes
-- and spaces: its members in sorted sets end with NUL.
local function read_lane(message, behind)
  if not behind or string.byte(message, behind) ~= 44 then -- a comma
    return nil
  end
  local mark = '"limit": "([!#-9;-~]+:[!#-~]*) (%d+)"'
  local lane, expires = string.match(message, '^, ' .. mark, behind)
  if not lane then
    lane, expires = string.match(message, '^, "task": "[^%s"]*", ' .. mark, behind)
  end
  if lane and #lane <= 500 and #expires <= 15 then
    return lane, tonumber(expires)
  end
end
