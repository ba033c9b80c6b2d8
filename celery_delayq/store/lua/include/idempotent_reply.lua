-- Give a call and its repeats the same reply.
--
-- Defines  answer_once

-- A caller repeats a call whose reply was lost. The reply is kept for a minute.
local function answer_once(key, work)
  local reply = redis.call('GET', key)
  if not reply then
    reply = work()
    redis.call('SET', key, reply, 'EX', 60)
  end
  return reply
end
