-- Announce a code version of periodic entries, and return the active one: the version that came
-- last among the live ones. When each came is kept for a week after its last announcement, so an
-- old one that starts again is an old one still.
--
-- KEYS     code_versions
-- ARGV     source  version
--          since_ms: since when it is known (ms), '' when that is not known
--          alive_ms: for how long it counts as being about (ms)
--          mark_before: the mark as it was read
--          mark_after: the mark that it is to be then, '' for no other
--          definitions: what its code says then: JSON of name to definition hash
-- Returns  {the version that counts, the mark as it is then or '', since when this one is known
--          (ms), other sources of which a version is about…}
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
    -- More digits than a time has.
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

-- A time in which no version was announced does not tell which one has gone: Redis was away, its
-- clock was set, or no worker was there. So it counts as a third of the time that a version may be
-- silent, and the noted times of live versions move with it: the second one to be announced finds
-- them too. It counts as more than nothing, for a version that is alone and seldom announced.
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

-- One that is new comes last, whatever the clock says.
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
