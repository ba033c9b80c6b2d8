-- Find runs of a task by the index, the newest first: see include/history.lua.
--
-- KEYS     history  history_index  history_index_before
-- ARGV     id: as in the lines of its runs
--          skipped_runs: number of the newest runs not to look at
--          most_looked: most runs to look at
--          most_runs: most runs of the task to return
-- Returns  {number of runs looked at, for each run of the task its offset and its line}
-- Repeat   reads only
-- Roles    operator
-- @include history

local skipped, most = tonumber(ARGV.skipped_runs), tonumber(ARGV.most_runs)
local looked, found, mark = 0, {}, index_mark(ARGV.id)

-- Add a run, unless the history no longer has it, or it is of another task with the same mark.
-- Another program may have written the offset.
local function add(offset)
  local run = redis.pcall('XRANGE', KEYS.history, offset, offset)[1]
  local line = run and run[2] and run[2][1] == 'r' and run[2][2] or ''
  if string.sub(line, 1, #ARGV.id + 3) == '1 ' .. ARGV.id .. ' ' then
    found[#found + 1] = offset
    found[#found + 1] = line
  end
end

for _, key in ipairs({KEYS.history_index, KEYS.history_index_before}) do
  local size = math.floor(redis.call('STRLEN', key) / INDEX_BYTES)
  local stop = size - skipped
  local start = math.max(0, stop - tonumber(ARGV.most_looked) + looked)
  skipped = math.max(0, skipped - size)
  if start < stop and #found < 2 * most then
    local text = redis.call('GETRANGE', key, start * INDEX_BYTES, stop * INDEX_BYTES - 1)
    local places, at = {}, string.find(text, mark, 1, true)
    while at do
      places[#places + 1] = at
      at = string.find(text, mark, at + INDEX_BYTES, true)
    end
    for i = #places, 1, -1 do
      if #found == 2 * most then
        start = start + (places[i + 1] - 1) / INDEX_BYTES
        break
      end
      add(string.match(text, '^%d+%-%d+', places[i] + #mark) or '0')
    end
    looked = looked + stop - start
  end
end
return {looked, unpack(found)}
