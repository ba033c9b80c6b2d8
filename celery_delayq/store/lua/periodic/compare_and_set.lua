-- Write periodic entries, each only if its state is the expected one.
--
-- KEYS     periodic  periodic_at
-- ARGV     wake_channel: wakes periodic runners
--          periodic_entries…: for each entry: name, expected first line ('' for no entry), record
--            ('' to remove the entry), when to look at it (ms, '' for never)
-- Returns  a code for each: 'd' done, 'c' the entry has another state, 'u' there is none
-- Repeat   'd' for a written entry, 'u' for a removed one
-- Roles    worker, dispatcher
-- @include types
-- @include periodic

expect_types(FIRST.periodic, 'hash', 'zset')
local codes = {}
for i = FIRST.periodic_entries, #ARGV, 4 do
  local name, line, record = ARGV[i], ARGV[i + 1], ARGV[i + 2]
  local there = redis.call('HGET', KEYS.periodic, name)
  local code = 'd'
  if there == record then
    code = 'd'
  elseif line == '' then
    code = there and 'c' or 'd'
  elseif not there then
    code = 'u'
  elseif not as_expected(KEYS.periodic, name, line) then
    code = 'c'
  end
  if code == 'd' then
    if record == '' then
      redis.call('ZREM', KEYS.periodic_at, name)
      redis.call('HDEL', KEYS.periodic, name)
    else
      redis.call('HSET', KEYS.periodic, name, record)
      look_at_entry(KEYS.periodic_at, name, ARGV[i + 3])
    end
  end
  codes[#codes + 1] = code
end
-- A hint only: periodic runners find the change at their next look if the account may not publish.
redis.pcall('PUBLISH', ARGV.wake_channel, '')
return table.concat(codes)
