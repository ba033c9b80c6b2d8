-- Announce a code version of periodic entries, and return the active version: the newest live one.
-- The time of its first announcement is kept for a week after its last one. So an old version that
-- starts again is not newer than the others.
--
-- KEYS     code_versions
-- ARGV     source  version
--          since_ms: time of the version's first announcement (ms), '' if unknown
--          alive_ms: for how long after an announcement a version is live (ms)
--          mark_before: the mark that the caller has read
--          mark_after: the new mark, '' to keep the mark
--          definitions: the definitions of the code with the new mark, JSON of name to definition
--            hash
-- Returns  {active version, mark after the call or '', time of this version's first announcement
--          (ms), other sources with a live version…}
-- Repeat   the same
-- Roles    worker, dispatcher
-- @include clock
-- @include types

local WEEK = 7 * 24 * 3600 * 1000

expect_type(KEYS.code_versions, 'hash')
local now = to_ms(now_us())
local source, version, alive = ARGV.source, ARGV.version, tonumber(ARGV.alive_ms)
local versions, others = {}, {}
local known, latest, newest
for _, field in ipairs(redis.call('HKEYS', KEYS.code_versions)) do
  local from, name = string.match(field, '^(.*)%z([^%z]+)$')
  if from then
    local since, last = string.match(redis.call('HGET', KEYS.code_versions, field), '^(%d+) (%d+)$')
    -- A time has at most 15 digits.
    local readable = since and #since <= 15 and #last <= 15
    since, last = readable and tonumber(since), readable and tonumber(last)
    if from ~= source then
      others[from] = others[from] or (last and math.abs(now - last) < alive) or nil
    elseif since and now - last < WEEK then
      latest = math.max(since, latest or since)
      newest = math.max(last, newest or last)
      versions[name] = {since, last}
      known = name == version and since or known
    else
      redis.call('HDEL', KEYS.code_versions, field)
    end
  end
end

-- A period without any announcement does not show which version has gone: Redis was away, its clock
-- was set, or no worker ran. So such a period counts as a third of alive_ms at most. The noted
-- times of live versions move with it, so the next version to be announced also finds them live. It
-- does not count as 0, since a version that is alone may be announced seldom.
local about = {}
for name, each in pairs(versions) do
  local since, last = each[1], each[2]
  local passed = math.min(math.max(now - newest, 0), math.ceil(alive / 3))
  local silent = newest - last + passed
  local moved = last
  if silent < alive then
    about[name], moved = since, now - silent
  elseif last > now - alive then
    moved = now - alive  -- the clock was set back
  end
  if moved ~= last and name ~= version then
    local field = source .. '\0' .. name
    redis.call('HSET', KEYS.code_versions, field, string.format('%.0f %.0f', since, moved))
  end
end

-- A new version is the newest one, even if the clock was set back.
local fresh = math.max(now, latest and latest + 1 or now)
local own = math.min(known or fresh, tonumber(ARGV.since_ms) or fresh)
about[version] = own
redis.call('HSET', KEYS.code_versions, source .. '\0' .. version,
  string.format('%.0f %.0f', own, now))
local counts = version
for name, since in pairs(about) do
  if since > about[counts] or (since == about[counts] and name > counts) then
    counts = name
  end
end

local mark = redis.call('HGET', KEYS.code_versions, source .. '\0') or ''
if ARGV.mark_after ~= '' and mark == ARGV.mark_before then
  mark = ARGV.mark_after
  redis.call('HSET', KEYS.code_versions, source .. '\0', mark, source .. '\0\0', ARGV.definitions)
end
local reply = {counts, mark, string.format('%.0f', own)}
for other in pairs(others) do
  reply[#reply + 1] = other
end
return reply
