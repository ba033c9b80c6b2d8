-- The history of runs.
--
-- Defines  add_run

-- Note a run that has ended, where there is a line of it, in the stream of about 'most' of them.
-- A full server refuses the line, which is then missing: no message waits for its history.
local function add_run(history, most, line)
  if line ~= '' then
    redis.pcall('XADD', history, 'MAXLEN', '~', most, '*', 'r', line)
  end
end
