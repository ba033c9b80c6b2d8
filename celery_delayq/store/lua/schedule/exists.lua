-- Return which messages exist, so that the caller does not make them again.
--
-- KEYS     due  entries  tasks  paused_due  held  lanes  unique  duplicate_ids  ready_index
--          leased_index  totals
-- ARGV     ids: each with a NUL behind it
--          message_ids: each with a NUL behind it
-- Returns  a code for each: 'd' it is scheduled, ready or leased, '-' it does not exist; the script
--          stops after reading about 1 MB of records
-- Repeat   reads only
-- Roles    operator
-- @include types
-- @include byte_limit
-- @include record
-- @include tracking
-- @include entry_store

local function split(text)
  local parts = {}
  for part in string.gmatch(text, '([^%z]*)%z') do
    parts[#parts + 1] = part
  end
  return parts
end

local tracked = expect_state()
local ids, message_ids, codes = split(ARGV.ids), split(ARGV.message_ids), {}

for i, id in ipairs(ids) do
  if i > 1 and bytes_left <= 0 then
    break
  end
  local known, bytes = is_scheduled(id, message_ids[i])
  take_bytes(bytes)
  codes[i] = (known or tracked and is_tracked(id, message_ids[i])) and 'd' or '-'
end
return table.concat(codes)
