-- One reply to a call and to its repeats.
--
-- Defines  answer_once

-- A call that is repeated after its reply was lost gets the same answer: it is kept for a minute.
local function answer_once(key, work)
  local reply = redis.call('GET', key)
  if not reply then
    reply = work()
    redis.call('SET', key, reply, 'EX', 60)
  end
  return reply
end
