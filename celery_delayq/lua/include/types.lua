-- Refuse a key of another type before anything is written, since nothing is rolled back.
local function expect_type(key, wanted)
  local found = redis.call('TYPE', key)['ok']
  if found ~= wanted and found ~= 'none' then
    error('WRONGTYPE ' .. key .. ' is a ' .. found .. ', expected a ' .. wanted, 0)
  end
end
