-- Tell which messages are known, so that those need not be made.
--
-- KEYS     1 due  2 entries  3 tasks  4 parked  5 unique  6 twins  7 waiting  8 running
-- ARGV     1… for each message: id, nonce
-- Returns  a letter for each: 'd' it is scheduled, ready or held; 'o' another one with its id is;
--          '-' neither
-- Repeat   reads only
-- @include types
-- @include record
-- @include state
-- @include entry

expect_state()
local letters = {}
for i = 1, #ARGV, 2 do
  local id, nonce = ARGV[i], ARGV[i + 1]
  local letter = '-'
  if is_scheduled(id, nonce) or is_tracked(id, nonce) then
    letter = 'd'
  elseif redis.call('HEXISTS', ENTRIES, id) == 1 or redis.call('HEXISTS', WAITING, id) == 1
      or redis.call('HEXISTS', RUNNING, id) == 1 then
    letter = 'o'
  end
  letters[#letters + 1] = letter
end
return table.concat(letters)
