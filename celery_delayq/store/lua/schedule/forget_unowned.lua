-- Forget about 50 unique keys that no message has, or names of second messages that are gone.
--
-- schedule/purge.lua leaves them if very many messages are leased.
--
-- KEYS     due  entries  tasks  paused_due  held  lanes  unique  duplicate_ids  ready_index
--          leased_index  totals
-- ARGV     looks_at: 'keys' or 'names'
--          cursor
-- Returns  next cursor
-- Repeat   goes on
-- Roles    operator
-- @include types
-- @include record
-- @include tracking

expect_state()
-- Forgetting frees memory, so a full server must accept the script: see dispatch/promote.lua.
redis.call('ZREM', DUPLICATE_IDS, '')
local page
if ARGV.looks_at == 'keys' then
  page = redis.call('HSCAN', UNIQUE, ARGV.cursor, 'COUNT', 50)
  for i = 1, #page[2], 2 do
    local key = page[2][i]
    local id, message_id = read_owner(key)
    if not (id and find_owner(id, message_id, key)) then
      redis.call('HDEL', UNIQUE, key)
    end
  end
else
  page = redis.call('ZSCAN', DUPLICATE_IDS, ARGV.cursor, 'COUNT', 50)
  for i = 1, #page[2], 2 do
    local name = page[2][i]
    local there = false
    for _, key in ipairs({ENTRIES, READY_INDEX, LEASED_INDEX}) do
      there = there or redis.call('HEXISTS', key, name) == 1
    end
    if not there then
      redis.call('ZREM', DUPLICATE_IDS, name)
    end
  end
end
return page[1]
