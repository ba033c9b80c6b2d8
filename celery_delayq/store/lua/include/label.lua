-- What scripts have to know of a message in every state stands in its first bytes (see
-- message.py): id, message id, for how long after its due it may start (ms, 0 for ever) and its unique
-- key, behind the dead letter of its scope, or '-'. So they parse no JSON. Returns nil for what has
-- none: messages of stock producers, and those that were sent to run at once.
local function read_label(message, start)
  local id, message_id, skip, unique = string.match(
    message, '^{"properties": {"delayq": {"label": "(%S*) (%S+) (%d+) (%S+)"', start or 1)
  if id and string.find(id, '%', 1, true) then
    id = string.gsub(id, '%%(%x%x)', function(hex) return string.char(tonumber(hex, 16)) end)
  end
  return id, message_id, tonumber(skip), unique
end

-- Only its unique key.
local function read_unique(message, start)
  return string.match(
    message, '^{"properties": {"delayq": {"label": "%S* %S+ %d+ (%S+)"', start or 1)
end
