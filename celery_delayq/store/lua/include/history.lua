-- Write the history of runs.
--
-- Defines  add_run

-- Add the line of an ended run, if any, to the stream of about 'most' runs. A full server refuses
-- the line, and the history lacks it: no message waits for its history.
local function add_run(history, most, line)
  if line ~= '' then
    redis.pcall('XADD', history, 'MAXLEN', '~', most, '*', 'r', line)
  end
end
