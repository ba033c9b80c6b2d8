-- The name of a dead letter with that id. It is never '': nobody can ask for that name, and no
-- index may have it (see dispatch/promote.lua). It never begins with NUL, as fields of messages do.
local function dead_letter_name(id)
  return (id == '' or string.byte(id) == 0) and 'unnamed' .. id or id
end

-- Its name, and the field of its message where that is large.
local function dead_letter_fields(name)
  return name, '\0' .. name
end

-- The fields of several of them.
local function all_dead_letter_fields(names)
  local fields = {}
  for _, name in ipairs(names) do
    fields[#fields + 1], fields[#fields + 2] = dead_letter_fields(name)
  end
  return fields
end

-- Bytes of a message from which on it has a field of its own: see message_in.
local LARGE = 65536

-- Keep what cannot be run: header line "1 <died ms> <due ms or 0> <reason>", then the bytes. With
-- details, which are JSON for those who look at it, it is "2 <died ms> <due ms or 0> <length of the
-- details> <reason>", then the details and the bytes. Where these are large, it is "3 …", the rest
-- as with 2, and the bytes have a field of their own.
local function add_dead_letter(dead, dead_at, id, now, due, reason, data, details)
  local first, number = dead_letter_name(id), redis.call('HLEN', dead)
  local name = first
  while redis.call('HEXISTS', dead, name) == 1 do
    name = first .. '\0' .. string.format('%.0f-%d', now, number)
    number = number + 1
  end
  local header = string.format('1 %.0f %.0f ', now, due)
  if details and details ~= '' then
    header = string.format('2 %.0f %.0f %d ', now, due, #details)
  end
  if #data < LARGE then
    redis.call('HSET', dead, name, header .. reason .. '\n' .. (details or '') .. data)
  else
    header = string.format('3 %.0f %.0f %d ', now, due, #(details or ''))
    local field, message_field = dead_letter_fields(name)
    redis.call('HSET', dead, field, header .. reason .. '\n' .. (details or ''), message_field, data)
  end
  redis.call('ZADD', dead_at, now, name)
end

-- A dead letter in one text, as "1 …" or "2 …"; nil where there is none.
local function read_dead_letter(dead, name)
  local field, message_field = dead_letter_fields(name)
  local data = redis.call('HGET', dead, field)
  if data and string.find(data, '^3 %d+ %-?%d+ %d+ ') then
    return '2' .. string.sub(data, 2) .. (redis.call('HGET', dead, message_field) or '')
  end
  return data
end

-- When a dead letter was written (ms); nil for what is none.
local function died_at(dead_letter)
  return string.match(dead_letter or '', '^[123] (%d+) ')
end

-- Whether a dead letter is there that died at that time, 0 for one that does not say when: 'd', 'c' when
-- it is another one by now, 'u' when there is none. A dead letter may be large, so it is not read.
local function dead_letter_state(dead, dead_at, id, died)
  if redis.call('HEXISTS', dead, id) == 0 then
    return 'u'
  end
  local at = redis.call('ZSCORE', dead_at, id)
  return at and died ~= '0' and tonumber(at) ~= tonumber(died) and 'c' or 'd'
end

-- Why a message is dead that may not start any more.
local function skip_reason(now, due, skip)
  return string.format('skipped: %.0f ms after it was due, at most %.0f allowed', now - due, skip)
end
