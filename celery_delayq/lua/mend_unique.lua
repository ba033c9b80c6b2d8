-- Look at a batch of the unique keys: each must have an owner. Mending removes those of what is
-- gone, which are free all the same.
--
-- KEYS     1 due  2 entries  3 tasks  4 parked  5 unique  6 twins  7 waiting  8 running
-- ARGV     1 cursor  2 about how many to look at  3 '1' to mend
-- Returns  {next cursor, looked at, then {kind, found, mended, some keys…}}
-- Repeat   finds what is left
-- @include types
-- @include record
-- @include label
-- @include state
-- @include mend

expect_state()
local mend = ARGV[3] == '1'
local page = redis.call('HSCAN', UNIQUE, ARGV[1], 'COUNT', ARGV[2])
for i = 1, #page[2], 2 do
  local key = page[2][i]
  local owner, nonce = read_owner(key)
  if not (owner and find_owner(owner, nonce, key)) then
    note('idle_key', key, mend)
    if mend then
      redis.call('HDEL', UNIQUE, key)
    end
  end
end
return tell(page[1], #page[2] / 2)
