-- Write the history of runs, and an index by task.
--
-- The index is a string with INDEX_BYTES for each run, the oldest first: a newline, the mark of its
-- task, a space, and its offset with spaces behind it. A string, since Redis needs six times the
-- memory for a member of a set. When history_index has as many runs as the history, it becomes
-- history_index_before, so no run has to be read before it is deleted.
--
-- Defines  INDEX_BYTES  index_mark  add_run
-- Expects  KEYS.history  KEYS.history_index  KEYS.history_index_before

local INDEX_BYTES = 32

-- The first bytes for a run of a task, whose id is as in its line.
local function index_mark(id)
  return '\n' .. string.sub(redis.sha1hex(id), 1, 8) .. ' '
end

-- Add the line of an ended run, if any, to the stream of about 'most' runs. A full server refuses
-- the line, and the history lacks it: no message waits for its history.
local function add_run(most, line)
  if line == '' then
    return
  end
  local offset = redis.pcall('XADD', KEYS.history, 'MAXLEN', '~', most, '*', 'r', line)
  local id = type(offset) == 'string' and string.match(line, '^1 (%S+) ')
  if not id then
    return
  end
  local text = string.format('%s%-22s', index_mark(id), offset)
  local size = #text == INDEX_BYTES and redis.pcall('APPEND', KEYS.history_index, text)
  -- The stream is trimmed in blocks of a hundred.
  if type(size) == 'number' and size >= INDEX_BYTES * (most + 100) then
    redis.pcall('UNLINK', KEYS.history_index_before)
    redis.pcall('RENAME', KEYS.history_index, KEYS.history_index_before)
  end
end
