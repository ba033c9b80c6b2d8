-- Read the schedule page by page. A reading returns each entry that exists when the reading begins
-- once, at the due that the entry has then, even if the entry is moved meanwhile.
-- include/pages/moves.lua notes the moves.
--
-- A member of READERS is the time when a reading began (µs). Its score is the time when the reading
-- counts as ended (ms). MOVED has two members for an entry that was moved during a reading:
--   its name; the score is the time of its last move (µs), which is more than any due, and
--   "<name> NUL <since> NUL <until> NUL <task>"; the score is the due that the entry had from since
--          to until (µs).
-- A large MOVED is renamed to MOVED_BEFORE as soon as no reading needs the old MOVED_BEFORE. All
-- three keys expire. In functions, 'moves' is the list of their names.
--
-- Defines  READING_MS  KEPT_MS  number_text  is_any_moved  hide_moved  read_version
--            behind_versions  last_version  note_reader
-- Expects  clock: now_us  to_ms

-- Longest time between two pages of a reading; time for which moves are kept after a page (ms).
local READING_MS, KEPT_MS = 3600000, 7200000

local function number_text(number)
  return string.format('%.17g', number)
end

-- Whether any move is noted.
local function is_any_moved(moves)
  return redis.call('EXISTS', moves[2], moves[3]) > 0
end

-- Hide entries that were moved since the reading began: MOVED returns them at their earlier due.
local function hide_moved(moves, entries, began)
  local names = {}
  for i, one in ipairs(entries) do
    names[i] = one[2]
  end
  for _, key in ipairs(#names > 0 and {moves[2], moves[3]} or {}) do
    for i, moved_at in ipairs(redis.call('ZMSCORE', key, unpack(names))) do
      if moved_at and tonumber(moved_at) > began then
        entries[i].is_hidden = true
      end
    end
  end
end

-- Name and task of a member of MOVED, and whether its entry had this due when the reading began.
local function read_version(member, began)
  local name, since, till, task = string.match(member, '^(.*)%z(%d+)%z(%d+)%z([^%z]*)$')
  if not name then
    return member, '', false
  end
  return name, task, tonumber(since) <= began and began < tonumber(till)
end

-- A text that sorts behind all members of MOVED for one entry and one due.
local function behind_versions(name)
  return name .. '\0\255'
end

-- The highest due from which an entry was moved; nil for none.
local function last_version(moves, first, last)
  local due
  for _, key in ipairs({moves[2], moves[3]}) do
    local found = redis.call('ZREVRANGEBYSCORE', key, last, first, 'WITHSCORES', 'LIMIT', 0, 1)[2]
    due = found and math.max(tonumber(found), due or tonumber(found)) or due
  end
  return due
end

-- Note that a reading goes on, or that it has ended. Errors are ignored: an account that may not
-- write can still read.
local function note_reader(moves, goes_on, began)
  if not goes_on then
    if redis.call('EXISTS', moves[1]) == 1 then
      redis.pcall('ZREM', moves[1], began)
      if redis.call('EXISTS', moves[1]) == 0 then
        redis.pcall('UNLINK', moves[2], moves[3])
      end
    end
    return
  end
  local now = now_us()
  if tonumber(began) > now + READING_MS * 1000 then
    return  -- made up, and moves would be noted as later than that
  end
  redis.pcall('ZADD', moves[1], to_ms(now) + READING_MS, began)
  for _, key in ipairs(moves) do
    redis.pcall('PEXPIRE', key, KEPT_MS)
  end
end
