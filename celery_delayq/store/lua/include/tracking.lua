-- The keys with which all scripts about entries begin.
local DUE, ENTRIES, TASKS, PARKED = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local UNIQUE, TWINS, WAITING, RUNNING = KEYS[5], KEYS[6], KEYS[7], KEYS[8]

-- Once it has left the schedule, an entry is found by its name in WAITING while it is ready, and
-- in RUNNING while a process holds it. There stands
-- "<nonce> <due ms> <unique key or -> <task> [<incarnation>]", and '!' before it when a ready one
-- was cancelled: it is dropped when its turn comes. With a history of runs it is not the
-- incarnation that stands in WAITING, but when it became ready (ms), where dispatch/promote.lua knew.

-- The name of an entry is its id or, where that is taken by another message with the same id,
-- "<id> NUL <nonce>". Names of the second kind are listed in TWINS until they are gone.
local function twin_name(id, nonce)
  return id .. '\0' .. nonce
end

-- Whether there are any: mostly not, and then nobody has to look for them.
local twins_there

local function has_twins()
  if twins_there == nil then
    twins_there = redis.call('EXISTS', TWINS) == 1
  end
  return twins_there
end

local function list_twin(name)
  if string.find(name, '\0', 1, true) then
    redis.call('ZADD', TWINS, 0, name)
    twins_there = true
  end
end

-- The names that a message may have.
local function names_of_message(id, nonce)
  return has_twins() and {id, twin_name(id, nonce)} or {id}
end

-- Refuse those of another type before anything is written.
local function expect_state()
  local types = {'zset', 'hash', 'zset', 'zset', 'hash', 'zset', 'hash', 'hash'}
  for i, wanted in ipairs(types) do
    expect_type(KEYS[i], wanted)
  end
end

-- What stands in WAITING or RUNNING: mark, nonce, due, unique, task, incarnation.
local function read_tracked(value)
  return string.match(value or '', '^(!?)(%S+) (%d+) (%S+) (%S*) ?(.*)$')
end

-- Name and value of a message in WAITING or RUNNING; nil when it is not there.
local function find_tracked(index, id, nonce)
  for _, name in ipairs(names_of_message(id, nonce)) do
    local value = redis.call('HGET', index, name)
    local _, found = read_tracked(value)
    if found == nonce then
      return name, value
    end
  end
end

local function track(index, id, nonce, rest)
  local name = id
  local there = redis.call('HGET', index, id)
  if there then
    local _, other = read_tracked(there)
    if other ~= nonce then
      name = twin_name(id, nonce)
      list_twin(name)
    end
  end
  redis.call('HSET', index, name, nonce .. ' ' .. rest)
end

local function tracking(due, unique, task)
  return string.format('%.0f ', due) .. unique .. ' ' .. task
end

-- Forget where a message is; returns what there was to know of it, or what its label tells: mark,
-- due, what is known of it everywhere, and what is known of it there.
local function untrack(index, id, nonce, unique)
  local name, value = find_tracked(index, id, nonce)
  if not name then
    return '', 0, tracking(0, unique, ''), ''
  end
  redis.call('HDEL', index, name)
  local mark, _, due, _, task, more = read_tracked(value)
  return mark, tonumber(due), tracking(due, unique, task), more
end

-- A message that a process held goes back to where it waits. It was in time once, so a limit for
-- that counts no more: its due is forgotten.
local function track_back(message, start)
  local id, nonce, skip, unique = read_label(message, start)
  if id then
    local _, _, rest = untrack(RUNNING, id, nonce, unique)
    track(WAITING, id, nonce, skip > 0 and string.gsub(rest, '^%d+', '0') or rest)
  end
end

-- The message that owns a unique key: its id and nonce, and since when (ms) if the policy needs it;
-- nil for a free key.
local function read_owner(key)
  local since, id, nonce = string.match(
    redis.call('HGET', UNIQUE, key) or '', '^(%d*)=([^%z]*)%z(%S+)$')
  return id, nonce, tonumber(since)
end

-- Where a message holds its unique key: 'scheduled', 'waiting' or 'running', then its name and
-- value; nil when it holds the key no longer, for example after a stock worker took it. Scope 's'
-- holds the key only while scheduled, scope 'd' until done.
local function find_owner(id, nonce, key)
  for _, name in ipairs(names_of_message(id, nonce)) do
    local data = redis.call('HGET', ENTRIES, name)
    local _, there, _, start = read_record(data)
    if there == nonce then
      local unique = read_unique(data, start)
      if unique and string.sub(unique, 2) == key then
        return 'scheduled', name, data
      end
    end
  end
  for _, place in ipairs({{'waiting', WAITING}, {'running', RUNNING}}) do
    local name, value = find_tracked(place[2], id, nonce)
    local mark, _, _, unique = read_tracked(value)
    if mark == '' and unique == 'd' .. key then
      return place[1], name, value
    end
  end
end

-- Release the unique key of a message that has left a place, unless it holds the key elsewhere.
local function release_key(unique, id, nonce)
  if unique == '-' then
    return
  end
  local key = string.sub(unique, 2)
  local owner, owner_nonce = read_owner(key)
  if owner == id and owner_nonce == nonce and not find_owner(id, nonce, key) then
    redis.call('HDEL', UNIQUE, key)
  end
end

-- Nothing is ready, so what stock workers took is waiting no more. Where nothing else is tracked
-- either, nothing of it is left.
local function forget_waiting()
  redis.call('UNLINK', WAITING)
  if redis.call('EXISTS', ENTRIES, RUNNING) == 0 then
    redis.call('UNLINK', TWINS, UNIQUE)
  end
end

-- A message that was ready or held is gone.
local function forget_tracked(index, message, start)
  local id, nonce, _, unique = read_label(message, start)
  if id then
    untrack(index, id, nonce, unique)
    if redis.call('EXISTS', TWINS) == 1 then
      redis.call('ZREM', TWINS, twin_name(id, nonce))
    end
    release_key(unique, id, nonce)
  end
end

-- Take an entry out of the schedule, but let it keep its unique key. Returns id, nonce and unique
-- key of its label, if it has one.
local function take_entry(name, score, data)
  redis.call('ZREM', DUE, name)
  redis.call('HDEL', ENTRIES, name)
  redis.call('ZREM', TWINS, name)
  local _, _, task, start = read_record(data)
  if task then
    local member = task_member(task, due_at(score), name)
    redis.call('ZREM', TASKS, member)
    redis.call('ZREM', PARKED, member)
    local id, nonce, _, unique = read_label(data, start)
    return id, nonce, unique
  end
end

-- The same, and it is gone.
local function remove_entry(name, score, data)
  local id, nonce, unique = take_entry(name, score, data)
  if id then
    release_key(unique, id, nonce)
  end
end
