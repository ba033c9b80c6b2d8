-- Keep what cannot be run: header line "1 <died ms> <due ms or 0> <reason>", then the bytes.
local function bury_letter(dead, dead_at, id, now, due, reason, data)
  if redis.call('HEXISTS', dead, id) == 1 then
    id = id .. '\0' .. string.format('%.0f-%d', now, redis.call('HLEN', dead))
  end
  redis.call('HSET', dead, id, string.format('1 %.0f %.0f ', now, due) .. reason .. '\n' .. data)
  redis.call('ZADD', dead_at, now, id)
end
