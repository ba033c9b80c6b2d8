-- Decide about a message whose unique key another message has.
--
-- Defines  key_since  owner_text  same_keys  plan_unique_key  supersede_owner  take_key
-- Expects  tracking: duplicate_name  read_owner  find_owner  DUE  remove_entry  READY_INDEX
--            release_key  UNIQUE
--          record: due_at

-- The time (ms) to note as the beginning of a key's use; nil if the policy does not need it.
local function key_since(policy, now)
  return string.byte(policy) == 108 and now or nil -- 'l'ater
end

-- A value of UNIQUE, see read_owner.
local function owner_text(since, id, message_id)
  return (since and string.format('%.0f', since) or '') .. '=' .. duplicate_name(id, message_id)
end

-- A key, and the same key under each former name of its task in the policy.
local function same_keys(key, policy)
  local keys, text = {key}, string.match(key, ':.*$') or ''
  for name in string.gmatch(string.match(policy, '^%a %d+ [01](.*)$') or '', '%S+') do
    keys[#keys + 1] = name .. text
  end
  return keys
end

-- Decide about a message with a unique key, and change nothing. The policy is '<character>
-- <max_wait ms> <1 for a retry>', then ' <name>' for each former name of the task. The character is
-- the first of 'replace', 'later', 'keep' or 'error'. Returns a table with
--   what   'store', 'beside' (store without the key), 'keep', 'error', 'superseded'
--   due    the due of the message (ms)
--   owner  id of the message that has the key; owner_key (the key, maybe under a former name),
--          message_id, state, name and value are set if the owner is superseded
--   since  time since when a message has the key (ms), for the policy 'later'
local function plan_unique_key(unique, id, due, now, policy)
  local kind, max_wait, retry = string.match(policy, '^(%a) (%d+) ([01])')
  local key = string.sub(unique, 2)
  local plan = {what = 'store', due = due, key = key, since = key_since(policy, now)}
  local owner, message_id, since, state, name, value
  for _, each in ipairs(same_keys(key, policy)) do
    owner, message_id, since = read_owner(each)
    if owner then
      plan.owner_key = each
      state, name, value = find_owner(owner, message_id, each)
    end
    if state then
      break
    end
  end
  if not state then
    return plan
  end
  plan.owner = owner
  if owner == id and state == 'running' and retry == '1' then
    -- The message is a retry of the owner, or a replacement by its task: it takes over the key.
    plan.since = plan.since and since or plan.since
  elseif retry == '1' then
    -- A message that has replaced the retried message meanwhile stays.
    plan.what = (kind == 'r' or kind == 'l') and 'superseded' or 'beside'
  elseif kind == 'k' then
    plan.what = 'keep'
  elseif kind == 'e' then
    plan.what = 'error'
  else
    plan.message_id, plan.state, plan.name, plan.value = message_id, state, name, value
    if kind == 'l' and state ~= 'running' then
      if state == 'scheduled' then
        plan.due = math.max(due, due_at(redis.call('ZSCORE', DUE, name) or due))
      end
      plan.since = math.min(since or now, now) -- the clock may have been set back
      if tonumber(max_wait) > 0 then
        plan.due = math.min(plan.due, plan.since + tonumber(max_wait))
      end
    end
  end
  return plan
end

-- Supersede the owner: a scheduled one is removed, a ready one will be dropped, a running one runs
-- on.
local function supersede_owner(plan)
  if plan.state == 'scheduled' then
    remove_entry(plan.name, redis.call('ZSCORE', DUE, plan.name) or 0, plan.value)
  elseif plan.state == 'waiting' then
    redis.call('HSET', READY_INDEX, plan.name, '!!' .. plan.value)
    release_key('d' .. plan.owner_key, plan.owner, plan.message_id)
  end
end

local function take_key(plan, id, message_id)
  redis.call('HSET', UNIQUE, plan.key, owner_text(plan.since, id, message_id))
end
