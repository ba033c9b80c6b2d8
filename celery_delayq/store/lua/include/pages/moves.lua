-- Note moves of entries while somebody reads the schedule page by page: see
-- include/pages/reading.lua. In functions, 'moves' is the list of the names of the three keys.
--
-- Defines  MOST_MOVED  KEPT_MS  moves_at  begin_moves  note_move
-- Expects  types: expect_type
--          clock: to_ms
--          record: due_at

-- Number of members at which MOVED becomes MOVED_BEFORE; time for which moves are kept (ms).
local MOST_MOVED, KEPT_MS = 5000, 7200000

-- The time that is noted for moves of this call (µs); nil when nobody reads.
local moves_at

-- Find out whether somebody reads. Refuses keys of another type.
local function begin_moves(moves, time_us)
  if redis.call('EXISTS', unpack(moves)) == 0 then
    return
  end
  local readers, moved, moved_before = unpack(moves)
  for _, key in ipairs(moves) do
    expect_type(key, 'zset')
  end
  redis.call('ZREMRANGEBYSCORE', readers, '-inf', to_ms(time_us))
  local oldest_reader, newest_reader
  for _, began in ipairs(redis.call('ZRANGE', readers, 0, -1)) do
    began = tonumber(began) or 0  -- anybody may have written it
    oldest_reader = math.min(began, oldest_reader or began)
    newest_reader = math.max(began, newest_reader or began)
  end
  if not newest_reader then
    redis.call('UNLINK', moved, moved_before)
    return
  end
  -- Later than the beginning of each reading, even if the clock was set back.
  moves_at = math.max(time_us, newest_reader + 1)
  if redis.call('ZCARD', moved) >= MOST_MOVED then
    local last_move = redis.call('ZREVRANGE', moved_before, 0, 0, 'WITHSCORES')[2]
    if tonumber(last_move or 0) <= oldest_reader then
      redis.call('UNLINK', moved_before)
      redis.call('RENAME', moved, moved_before)
    end
  end
end

-- Note the due from which an entry is moved.
local function note_move(moves, name, score, task)
  local _, moved, moved_before = unpack(moves)
  if not moves_at then
    return
  end
  local since = math.max(
    tonumber(redis.call('ZSCORE', moved, name) or 0),
      tonumber(redis.call('ZSCORE', moved_before, name) or 0))
  local version = {name, string.format('%.0f', since), string.format('%.0f', moves_at), task or ''}
  redis.call('ZADD', moved, due_at(score), table.concat(version, '\0'))
  redis.call('ZADD', moved, string.format('%.0f', moves_at), name)
  redis.call('PEXPIRE', moved, KEPT_MS)
end
