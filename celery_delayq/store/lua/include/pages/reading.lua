-- For those who read the schedule page by page: each entry that is there when the reading begins
-- comes once, by the due that it has then, however it is moved meanwhile. include/pages/moves.lua
-- is the other side.
--
-- READERS has when each reading began (µs), scored by until when it is taken to go on (ms). MOVED
-- has of each entry that was moved while somebody was reading
--   its name, scored by when it was last moved (µs), which is more than any due, and
--   "<name> NUL <since> NUL <until> NUL <task>", scored by the due that it had from since to until
--          (µs).
-- When MOVED is large it becomes MOVED_BEFORE, once nobody needs what stood there. All of these
-- expire. Functions get the names of the three.
--
-- Defines  READING_MS  KEPT_MS  number_text  is_any_moved  hide_moved  read_version
--            behind_versions  last_version  note_reader
-- Expects  clock: now_us  to_ms

-- How long a reader may take for a page, and moves are kept after a page (ms).
local READING_MS, KEPT_MS = 3600000, 7200000

local function number_text(number)
  return string.format('%.17g', number)
end

-- Whether moves were noted.
local function is_any_moved(moves)
  return redis.call('EXISTS', moves[2], moves[3]) > 0
end

-- Hide those that were moved since the reading began: they are found by the due that they had.
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

-- The name and the task of an entry that had another due, and whether it had that when the reading
-- began.
local function read_version(member, began)
  local name, since, till, task = string.match(member, '^(.*)%z(%d+)%z(%d+)%z([^%z]*)$')
  if not name then
    return member, '', false
  end
  return name, task, tonumber(since) <= began and began < tonumber(till)
end

-- Behind all of those of one entry with one due.
local function behind_versions(name)
  return name .. '\0\255'
end

-- The highest due from which something was moved; nil for none.
local function last_version(moves, first, last)
  local due
  for _, key in ipairs({moves[2], moves[3]}) do
    local found = redis.call('ZREVRANGEBYSCORE', key, last, first, 'WITHSCORES', 'LIMIT', 0, 1)[2]
    due = found and math.max(tonumber(found), due or tonumber(found)) or due
  end
  return due
end

-- Note that a reading goes on, or that it has ended. Where that may not be written, it goes on all
-- the same.
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
