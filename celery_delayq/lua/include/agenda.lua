-- The agenda says when to look at each queue next: at its earliest entry, or later after an error.

-- {now (µs), queue, due (ms)} of the first queue to look at; the queue is '' when there is none.
local function agenda_head(agenda, now)
  local head = redis.call('ZRANGE', agenda, 0, 0, 'WITHSCORES')
  return {now, head[1] or '', head[2] or ''}
end

-- Note that a queue has something due, and wake the dispatchers when that is the earliest of all.
local function announce(agenda, queues, queue, layout, due, now, channel)
  redis.call('HSETNX', queues, queue, layout)
  local next_look = redis.call('ZSCORE', agenda, queue)
  if next_look and tonumber(next_look) <= due then
    return
  end
  local head = redis.call('ZRANGE', agenda, 0, 0, 'WITHSCORES')
  redis.call('ZADD', agenda, due, queue)
  if not head[2] or due < tonumber(head[2]) then
    -- A hint only: an account that may not publish costs one poll interval.
    redis.pcall('PUBLISH', channel, string.format('%.0f ', due * 1000 - now) .. queue)
  end
end

-- Set when to look next from what is left in the schedule.
local function look_again(agenda, queue, due_key)
  local first = redis.call('ZRANGE', due_key, 0, 0, 'WITHSCORES')
  if first[2] then
    redis.call('ZADD', agenda, first[2], queue)
  else
    redis.call('ZREM', agenda, queue)
  end
end
