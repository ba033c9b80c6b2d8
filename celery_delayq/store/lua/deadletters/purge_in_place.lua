-- Delete dead letters, in the order of their time of death, if no chord and no result backend has to
-- be told. The script returns the ids of the other dead letters: their workers died, or they belong
-- to a group.
--
-- KEYS     dead  dead_at  answer
-- ARGV     first_ms: died at this time or later (ms or -inf)
--          last_ms: died at this time or earlier (ms)
--          most_dead_letters
--          after_id: id of a dead letter that died at first_ms, after which to begin, '' for none
--          reasons…: beginnings of the reasons of dead letters whose workers died
-- Returns  '<1 if there is more> <when the last one died (ms)> <how many were deleted>', for each
--          other dead letter ' <length of its id> <when it died>', a newline, and their ids joined
-- Repeat   the same answer, for a minute
-- Roles    operator
-- @include types
-- @include record
-- @include byte_limit
-- @include ranks
-- @include idempotent_reply

-- Whether the message of a dead letter may belong to a group. No JSON is parsed: a name may be
-- spelled with escapes.
local function may_have_group(dead_letter, first)
  if string.find(dead_letter, '\\u00', first, true)
    and string.find(dead_letter, '\\u00[67]', first) then
    return true
  end
  local at = string.find(dead_letter, '"group"', first, true)
  while at do
    if string.sub(dead_letter, at, at + 12) ~= '"group": null' then
      return true
    end
    at = string.find(dead_letter, '"group"', at + 7, true)
  end
  return false
end

-- Whether a dead letter can be deleted without a report (see include/dead_letter.lua).
local function is_unreported(dead_letter)
  local size, reason, first = string.match(
    dead_letter, '^2 %d+ %-?%d+ (%d+) ([^\n]*)\n()')
  if not size then
    reason, first = string.match(dead_letter, '^1 %d+ %-?%d+ ([^\n]*)\n()')
  end
  if not reason then
    return false
  end
  for i = FIRST.reasons, #ARGV do
    if string.sub(reason, 1, #ARGV[i]) == ARGV[i] then
      return false
    end
  end
  return not may_have_group(dead_letter, first + (tonumber(size) or 0))
end

return answer_once(KEYS.answer, function()
  expect_types(FIRST.dead, 'hash', 'zset')
  -- Deleting frees memory, so a full server must accept the script: see dispatch/promote.lua.
  redis.call('ZREM', KEYS.dead_at, '')

  local found, more = members_between(KEYS.dead_at, ARGV.first_ms, ARGV.last_ms, ARGV.after_id,
    tonumber(ARGV.most_dead_letters))
  local deleted, sizes, left, last = {}, {}, {}, ARGV.first_ms
  for i = 1, #found, 2 do
    if bytes_left <= 0 then
      more = true
      break
    end
    local id = found[i]
    last = found[i + 1]
    local dead_letter = redis.call('HGET', KEYS.dead, id) or ''
    take_bytes(#dead_letter)
    if is_unreported(dead_letter) then
      deleted[#deleted + 1] = id
    else
      sizes[#sizes + 1] = ' ' .. #id .. ' ' .. last
      left[#left + 1] = id
    end
  end
  if #deleted > 0 then
    redis.call('HDEL', KEYS.dead, unpack(deleted))
    redis.call('ZREM', KEYS.dead_at, unpack(deleted))
  end
  return (more and '1 ' or '0 ') .. last .. ' ' .. #deleted .. table.concat(sizes) .. '\n'
    .. table.concat(left)
end)
