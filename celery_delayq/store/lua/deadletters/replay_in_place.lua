-- Replay dead letters whose messages need no parsing, in the order of their time of death.
--
-- In one step a message becomes ready and its dead letter is deleted. The script returns the ids of
-- the other dead letters.
--
-- KEYS     wake  dead  dead_at  answer  totals
--          ready_lists…: from the list of the lowest step on
-- ARGV     first_ms: died at this time or later (ms or -inf)
--          last_ms: died at this time or earlier (ms)
--          most_dead_letters
--          tag_characters: 32 characters for delivery tags; a counter replaces the first four
--          after_id: id of a dead letter that died at first_ms, after which to begin, '' for none
--          steps…: the priority steps of ready_lists
-- Returns  '<1 if there is more> <when the last one died (ms)> <how many are ready>', for each
--          other dead letter ' <length of its id> <when it died>', a newline, and their ids joined
-- Repeat   the same answer, for a minute
-- Roles    operator
-- @include clock
-- @include types
-- @include record
-- @include byte_limit
-- @include ranks
-- @include wake
-- @include totals
-- @include idempotent_reply

-- Edit the message of a dead letter for its replay. If the message is spelled as Celery and kombu
-- spell it, with each header once and in Celery's order (celery.app.amqp), three values are
-- replaced in its text. No JSON is parsed or encoded. nil for other messages, and if more has to
-- change.

local function once(text, name, from)
  local first, last = string.find(text, name, from, true)
  if first and not string.find(text, name, last + 1, true) then
    return first
  end
  return nil
end

-- The place behind 'null' or a plain string.
local function behind(text, at)
  return string.match(text, '^null, ()', at) or string.match(text, '^"[^"\\]*", ()', at)
end

-- The place where the message begins in a dead letter (see include/dead_letter.lua).
local function message_in(dead_letter)
  local size, first = string.match(dead_letter, '^2 %d+ %-?%d+ (%d+) [^\n]*\n()')
  if size then
    return first + tonumber(size)
  end
  return string.match(dead_letter, '^1 %d+ %-?%d+ [^\n]*\n()')
end

-- First and next place of the number of retries, for a task without ETA and expiry.
local function retries_in(text, first)
  local at = once(text, 'task": ', first)
  if not (at and once(text, 'retries": ', first)) then
    return nil
  end
  at = string.match(text, '^task": "[^"\\]+", "id": "[^"\\]+", "shadow": ()', at)
  at = at and behind(text, at)
  at = at and string.match(text, '^"eta": null, "expires": null, "group": ()', at)
  at = at and behind(text, at)
  if at then
    return string.match(text, '^"group_index": %w+, "retries": ()%d+(), "timelimit": ', at)
  end
end

-- The message with this delivery tag and no retries, and its priority.
local function edit_for_replay(dead_letter, tag)
  local first = message_in(dead_letter)
  if not first or string.sub(dead_letter, -2) ~= '}}'
    or string.find(dead_letter, '"unbound"', 1, true) then
    return nil
  end
  -- A header's name may be hidden by plain characters that are spelled as '\u00xx'.
  if string.find(dead_letter, '\\u00', first, true)
    and string.find(dead_letter, '\\u00[2-7]', first) then
    return nil
  end
  local from, to = retries_in(dead_letter, first)
  local at = from and once(dead_letter, 'delivery_tag": ', first)
    and once(dead_letter, 'priority": ', first)
  if not at then
    return nil
  end
  local priority, tag_from, tag_to = string.match(
    dead_letter, '^priority": (%d), "body_encoding": "?%w+"?, "delivery_tag": "()[^"\\]*()"', at)
  if not priority then
    return nil
  end
  local edits = {{from, to, '0'}, {tag_from, tag_to, tag}}
  local own = string.find(dead_letter, '"delayq": ', first, true)
  if own then
    -- These values are of the earlier run, so the header becomes empty.
    local own_from, own_to = string.match(
      dead_letter, '^"delayq": (){"label": "[^"\\]*", "eta": "[^"\\]*"}()', own)
    if not own_from then
      own_from, own_to = string.match(dead_letter, '^"delayq": (){"label": "[^"\\]*"}()', own)
    end
    if not own_from or string.find(dead_letter, '"delayq": ', own_to, true) then
      return nil
    end
    edits[3] = {own_from, own_to, '{}'}
  end
  table.sort(edits, function(a, b) return a[1] < b[1] end)
  local parts, done = {}, first
  for _, edit in ipairs(edits) do
    parts[#parts + 1] = string.sub(dead_letter, done, edit[1] - 1)
    parts[#parts + 1] = edit[3]
    done = edit[2]
  end
  parts[#parts + 1] = string.sub(dead_letter, done)
  return table.concat(parts), tonumber(priority)
end

return answer_once(KEYS.answer, function()
  expect_types(FIRST.dead, 'hash', 'zset')
  expect_all(FIRST.ready_lists, 'list')
  -- Memory use stays, so a full server must accept the script: see dispatch/promote.lua.
  redis.call('ZREM', KEYS.dead_at, '')

  local function list_of(priority)
    local list = KEYS[FIRST.ready_lists]
    for i = FIRST.steps, #ARGV do
      if tonumber(ARGV[i]) <= priority then
        list = KEYS[i + (FIRST.ready_lists - FIRST.steps)]
      end
    end
    return list
  end

  local found, more = members_between(KEYS.dead_at, ARGV.first_ms, ARGV.last_ms, ARGV.after_id,
    tonumber(ARGV.most_dead_letters))
  local replayed_in_place, sizes, left, last = {}, {}, {}, ARGV.first_ms
  local ready, tail = {}, string.sub(ARGV.tag_characters, 5)
  for i = 1, #found, 2 do
    if bytes_left <= 0 then
      more = true
      break
    end
    local id = found[i]
    last = found[i + 1]
    local dead_letter = redis.call('HGET', KEYS.dead, id) or ''
    take_bytes(#dead_letter)
    local message, priority = edit_for_replay(dead_letter, string.format('%04x', i) .. tail)
    if message then
      local list = list_of(priority)
      ready[list] = ready[list] or {}
      table.insert(ready[list], message)
      replayed_in_place[#replayed_in_place + 1] = id
    else
      sizes[#sizes + 1] = ' ' .. #id .. ' ' .. last
      left[#left + 1] = id
    end
  end
  if #replayed_in_place > 0 then
    -- Pushed before the dead letters are deleted, so a message is always in some key.
    for list, messages in pairs(ready) do
      redis.call('LPUSH', list, unpack(messages))
    end
    wake_consumers(KEYS.wake)
    redis.call('HDEL', KEYS.dead, unpack(replayed_in_place))
    redis.call('ZREM', KEYS.dead_at, unpack(replayed_in_place))
    add_total(KEYS.totals, 'replayed', #replayed_in_place)
    add_total(KEYS.totals, 'ready', #replayed_in_place)
  end
  return (more and '1 ' or '0 ') .. last .. ' ' .. #replayed_in_place .. table.concat(sizes)
    .. '\n' .. table.concat(left)
end)
