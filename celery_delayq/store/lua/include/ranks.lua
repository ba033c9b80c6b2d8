-- Continue to read a sorted set where an earlier call ended.
--
-- OFFSET is not used: its time grows with the number of members of one score.
--
-- Defines  rank_behind  members_between
-- Expects  record: is_before

-- The rank of the first member behind a score and member. That member may be gone.
local function rank_behind(key, score, member)
  local from = redis.call('ZCOUNT', key, '-inf', '(' .. score)
  local to = redis.call('ZCOUNT', key, '-inf', score)
  while from < to do
    local middle = math.floor((from + to) / 2)
    if is_before(member, redis.call('ZRANGE', key, middle, middle)[1]) then
      to = middle
    else
      from = middle + 1
    end
  end
  return from
end

-- Up to 'number' members between two scores, each followed by its score, and whether there are
-- more. Members begin behind 'after', a member of the first score, unless 'after' is ''.
local function members_between(key, first, last, after, number)
  local from = first == '-inf' and 0 or redis.call('ZCOUNT', key, '-inf', '(' .. first)
  if after ~= '' then
    from = rank_behind(key, first, after)
  end
  local to = redis.call('ZCOUNT', key, '-inf', last)
  if from >= to or number < 1 then
    return {}, false
  end
  local found = redis.call('ZRANGE', key, from, math.min(to, from + number) - 1, 'WITHSCORES')
  return found, from + number < to
end
