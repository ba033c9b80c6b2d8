-- The list on which consumers of a queue wait.
--
-- Defines  wake_consumers

-- The marker that a queue has something ready: consumers that found nothing block on it. It is a
-- list of at most one element, so that one BRPOP can wait for it and for stock lists alike.
local function wake_consumers(marker)
  if redis.call('EXISTS', marker) == 0 then
    redis.call('LPUSH', marker, '')
    -- Queues that nobody leases from have one too.
    redis.call('EXPIRE', marker, 60)
  end
end
