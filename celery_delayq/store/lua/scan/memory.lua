-- Tell about how many bytes some keys take.
--
-- KEYS     1… keys of a queue
-- ARGV     –
-- Returns  their sum; an error where the server does not tell
-- Repeat   reads only

local bytes = 0
for _, key in ipairs(KEYS) do
  bytes = bytes + (redis.call('MEMORY', 'USAGE', key) or 0)
end
return bytes
