-- Refuse a key of another type before anything is written, since nothing is rolled back.
local function expect_type(key, wanted)
  local found = redis.call('TYPE', key)['ok']
  if found ~= wanted and found ~= 'none' then
    error('WRONGTYPE ' .. key .. ' is a ' .. found .. ', expected a ' .. wanted, 0)
  end
end

-- Read from a key, and refuse by name one of another type.
local function read_typed(wanted, command, key, ...)
  local reply = redis.pcall(command, key, ...)
  if type(reply) == 'table' and reply['err'] then
    expect_type(key, wanted)
    error(reply['err'], 0)
  end
  return reply
end
