-- Add runs to the history whose messages were acknowledged before the runs began.
--
-- The key that shows that the process lives has the number of its last call. If the key has
-- expired, a repeated call adds its runs again.
--
-- KEYS     history  history_index  history_index_before  worker_id
-- ARGV     history_size: about how many runs to keep
--          call_number: number of this call of the process
--          lines: of the runs, each with a line feed behind it
-- Returns  number of runs that were added
-- Repeat   0
-- Roles    worker
-- @include history

local last = tonumber(redis.call('GET', KEYS.worker_id) or 0)
if last and last >= tonumber(ARGV.call_number) then
  return 0
end
redis.pcall('SET', KEYS.worker_id, ARGV.call_number, 'XX', 'KEEPTTL')
local noted, most = 0, tonumber(ARGV.history_size)
for line in string.gmatch(ARGV.lines, '([^\n]*)\n') do
  add_run(most, line)
  noted = noted + 1
end
return noted
