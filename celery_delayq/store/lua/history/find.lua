-- Find the runs of a task among the newest runs. The reply has no other runs: to read them takes a
-- client far longer.
--
-- KEYS     history
-- ARGV     upto: the newest run to look at: '+' or '(' and the offset of the next newer run
--          beginning: the first bytes of the runs of the task
--          most_runs: most runs to look at
-- Returns  {number of runs looked at, offset of the last one or '', for each run of the task its
--          offset and its line}
-- Repeat   reads only
-- Roles    operator

local runs = redis.call('XREVRANGE', KEYS.history, ARGV.upto, '-', 'COUNT', ARGV.most_runs)
local found, size = {#runs, #runs > 0 and runs[#runs][1] or ''}, #ARGV.beginning
for _, run in ipairs(runs) do
  local fields = run[2]
  if fields and fields[1] == 'r' and string.sub(fields[2], 1, size) == ARGV.beginning then
    found[#found + 1] = run[1]
    found[#found + 1] = fields[2]
  end
end
return found
