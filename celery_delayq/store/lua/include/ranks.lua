-- Places in a sorted set, for reading on where another call ended: without OFFSET, so it takes the
-- same time however many members have one score.
--
-- Defines  rank_behind  members_between
-- Expects  record: is_before

-- The first rank at which a member stands behind a place, which may be empty meanwhile.
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

-- Up to a number of members between two scores, each followed by its score, and whether there are
-- more: behind 'after', a member with the first score, unless it is ''.
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
