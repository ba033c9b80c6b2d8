-- One dispatcher is on duty: it wakes when something is due, the others now and then. The hash of
-- lease time says who ('duty') and when it was heard last ('duty_at', ms). A hint: whoever finds
-- something overdue promotes it.
--
-- Defines  on_duty
-- Expects  clock: read_whole

-- 1 when 'me' is on duty from now on, else 0. It takes the duty when it 'wins' it, and when nobody
-- has it or was heard lately.
local function on_duty(clock, me, wins, now)
  if me == '' then
    return 0
  end
  local who, at = unpack(redis.call('HMGET', clock, 'duty', 'duty_at'))
  local silent = now - (read_whole(at) or 0)
  local is_there = who and silent >= 0 and silent < 2500
  if who ~= me and is_there and not wins then
    return 0
  end
  if who ~= me or silent < 0 or silent >= 500 then
    redis.call('HSET', clock, 'duty', me, 'duty_at', string.format('%.0f', now))
  end
  return 1
end
