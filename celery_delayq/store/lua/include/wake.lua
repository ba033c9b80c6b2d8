-- Wake the consumers of a queue.
--
-- Defines  wake_consumers

-- Set the marker of a queue that has ready messages: consumers that found none block on the marker.
-- It is a list of at most one element, so that one BRPOP waits for markers and for stock lists.
local function wake_consumers(marker)
  if redis.call('EXISTS', marker) == 0 then
    redis.call('LPUSH', marker, '')
    -- The marker of a queue without consumers expires.
    redis.call('EXPIRE', marker, 60)
  end
end
