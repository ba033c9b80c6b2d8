-- One dispatcher is on duty: it wakes when something is due, the others now and then. The hash of
-- lease time has its name ('duty') and when it last called ('duty_at', ms). Duty is a hint: each
-- dispatcher that finds something overdue promotes it.
--
-- Defines  take_duty
-- Expects  clock: read_whole

-- Returns 1 when 'me' is on duty from now on, else 0. It takes the duty when it 'wins', when nobody
-- has the duty, and when the one that has it was silent.
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
