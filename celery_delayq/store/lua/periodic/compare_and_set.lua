-- Write periodic entries, each only if its state is the expected one.
--
-- KEYS     1 periodic  2 periodic_at
-- ARGV     1 channel that wakes tickers  2… for each entry: name, the line in which it
--          is to stand ('' for none), record ('' to remove it), when to look at it (ms, '' for
--          never)
-- Returns  a code for each: 'd' done, 'c' it stands otherwise, 'u' there is none
-- Repeat   'd' for what is as it was to be, 'u' for what was removed
-- @include types
-- @include periodic

expect_types(1, 'hash', 'zset')
local codes = {}
for i = 2, #ARGV, 4 do
  local name, line, record = ARGV[i], ARGV[i + 1], ARGV[i + 2]
  local there = redis.call('HGET', KEYS[1], name)
  local code = 'd'
  if there == record then
    code = 'd'
  elseif line == '' then
    code = there and 'c' or 'd'
  elseif not there then
    code = 'u'
  elseif not as_expected(KEYS[1], name, line) then
    code = 'c'
  end
  if code == 'd' then
    if record == '' then
      redis.call('ZREM', KEYS[2], name)
      redis.call('HDEL', KEYS[1], name)
    else
      redis.call('HSET', KEYS[1], name, record)
      look_at_entry(KEYS[2], name, ARGV[i + 3])
    end
  end
  codes[#codes + 1] = code
end
-- A hint only: who may not publish is found out when they look again.
redis.pcall('PUBLISH', ARGV[1], '')
return table.concat(codes)
