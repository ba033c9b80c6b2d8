-- Write dead letters, and read their headers.
--
-- Defines  dead_letter_name  add_dead_letter  died_at  has_digest  dead_letter_state
--          skip_reason

-- The name of a dead letter with this id. The name is never '': no command can ask for '', and no
-- index may have it (see dispatch/promote.lua).
local function dead_letter_name(id)
  return id == '' and 'unnamed' or id
end

-- Write a dead letter: a header line "1 <died ms> <due ms or 0> <reason>", then the bytes. With
-- details (JSON, for people) it is a line "2 <died ms> <due ms or 0> <length of the details>
-- <reason>", then the details and the bytes.
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
  redis.call('HSET', dead, name, header .. reason .. '\n' .. (details or '') .. data)
  redis.call('ZADD', dead_at, now, name)
end

-- When a dead letter was written (ms); nil if the text is no dead letter.
local function died_at(dead_letter)
  return string.match(dead_letter or '', '^[12] (%d+) ')
end

-- Whether a dead letter has the bytes of this digest: their length and their SHA-1. The script
-- reads the bytes only if their length is the same: they may be many.
local function has_digest(dead, id, digest)
  local length = string.format('%.0f ', redis.call('HSTRLEN', dead, id))
  return string.sub(digest, 1, #length) == length
    and length .. redis.sha1hex(redis.call('HGET', dead, id)) == digest
end

-- Whether a dead letter exists: 'd' if it died at this time and has the bytes of this digest, 'c'
-- if it is another one by now or has other bytes, 'u' if there is none. A time of 0 matches any;
-- without a digest any bytes match.
local function dead_letter_state(dead, dead_at, id, died, digest)
  if redis.call('HEXISTS', dead, id) == 0 then
    return 'u'
  end
  local at = redis.call('ZSCORE', dead_at, id)
  if at and died ~= '0' and tonumber(at) ~= tonumber(died) then
    return 'c'
  end
  return (not digest or has_digest(dead, id, digest)) and 'd' or 'c'
end

-- The reason of a dead letter that was later than its skip_after.
local function skip_reason(now, due, skip)
  return string.format('skipped: %.0f ms after it was due, at most %.0f allowed', now - due, skip)
end
