-- One dispatcher is on duty: it wakes when something is due. The others wake from time to time. The
-- hash 'clock' has the name of the dispatcher on duty ('duty') and the time of its last call
-- ('duty_at', ms). Duty is a hint: any dispatcher that finds an overdue entry promotes it.
--
-- Defines  take_duty
-- Expects  clock: read_whole

-- Returns 1 if dispatcher 'me' is on duty from now on, else 0. It takes the duty if 'wins' is true,
-- if no dispatcher has the duty, or if the dispatcher on duty was silent.
local function take_duty(clock, me, wins, now)
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
