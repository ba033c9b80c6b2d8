-- Note that a version of the periodic entries in code is about, and tell which counts: the one that
-- came last of those that are. So an older one that starts again changes nothing, until all newer
-- ones are gone.
--
-- KEYS     1 deploys
-- ARGV     1 source  2 version  3 since when it is about (ms), '' when that is not known  4 for how
--          long it counts as being about (ms)  5 '1' when its entries have been written, '0' when
--          those that count are to be written again
-- Returns  {the version that counts, the version whose entries were written last or '', since when
--          this one is about (ms)}
-- Repeat   the same
-- @include clock
-- @include types

expect_type(KEYS[1], 'hash')
local now = math.floor(now_us() / 1000)
local source, version = ARGV[1], ARGV[2]
local prefix = source .. '\0'
local newest, newest_since, own = '', -1, nil
local all = redis.call('HGETALL', KEYS[1])
local written = ''
local found = {}
for i = 1, #all, 2 do
  if string.sub(all[i], 1, #prefix) == prefix then
    local name = string.sub(all[i], #prefix + 1)
    local since, till = string.match(all[i + 1], '^(%d+) (%d+)$')
    if name == '' then
      written = all[i + 1]
    elseif since and (tonumber(till) > now or name == version) then
      found[name] = tonumber(since)
    else
      redis.call('HDEL', KEYS[1], all[i])
    end
  end
end
own = math.min(found[version] or now, tonumber(ARGV[3]) or now)
found[version] = own
redis.call('HSET', KEYS[1], prefix .. version,
  string.format('%.0f %.0f', own, now + tonumber(ARGV[4])))
for name, since in pairs(found) do
  if since > newest_since or (since == newest_since and name > newest) then
    newest, newest_since = name, since
  end
end
if ARGV[5] == '0' then
  redis.call('HDEL', KEYS[1], prefix)
  written = ''
elseif ARGV[5] == '1' and newest == version then
  redis.call('HSET', KEYS[1], prefix, version)
  written = version
end
return {newest, written, string.format('%.0f', own)}
