-- Notes that replicas share: short texts with an end, of which a later one takes the place of the one with the same ID. They
-- are in sorted sets, so that what changed since a revision is one range.
-- The end of a note is in ms since the epoch. One that was taken away stays as a note without text, so that nobody who was away
-- puts it back; but the last 1,000 of these alone. How late the others were is the horizon: a note that is not later, and not
-- here, was taken away, and is not put back. Notes that have ended stay for a day, the last 1,000 of them.
--
-- KEYS[1]  as text: epoch, which is new when everything is; revision, which rises with each note; floor, the last revision of a
--          note that was taken away and forgotten; horizon, the latest time of these (µs); how many notes there are
-- KEYS[2]  ID → revision
-- KEYS[3]  text → revision; a text is: time of the note (µs), its end, 1 if it was taken away or 0, its ID, what it says
-- KEYS[4]  ID → end, of those that were not taken away
-- KEYS[5]  ID → revision, of those that were taken away
-- KEYS[6]  name of a replica, with what it says of itself → when it was last here (ms)
-- KEYS[7]  a secret that replicas share
--
-- ARGV[1]  what to do
--   poll   ARGV[2..6]: epoch and revision that are known, the most texts to return, name of a replica that is here or '', the
--          name that it had before or ''
--          result: epoch, revision of the last text returned, or of all, floor, horizon, 1 if there are more, 1 if some were
--          lost, texts
--   put    ARGV[2..5]: epoch if there is none yet, the most notes in force, 1 if notes are put back or 0, a horizon to put back
--          or 0; then for each note: ID, end, 1 if it is taken away or 0, time it was made if it is put back, what it says
--          result: time of each note; or 'full', and nothing is changed. A note that is put back changes nothing where
--          there is a later one, and is kept even if there are too many.
--   here   result: names of the replicas that were here in the last 5 s
--   leave  ARGV[2]: name of a replica
--   secret ARGV[2]: the secret, if there is none yet; result: the secret
if ARGV[1] == 'secret' then
  redis.call('SET', KEYS[7], ARGV[2], 'NX')
  return redis.call('GET', KEYS[7])
end

local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local function text(n) return string.format('%.0f', n) end
local function ms(n) return text(math.floor(n / 1000)) end

local epoch, revision, floor, horizon, count = string.match(redis.call('GET', KEYS[1]) or '', '^(%S+) (%d+) (%d+) (%d+) (%d+)$')
revision, floor, horizon, count = tonumber(revision or 0), tonumber(floor or 0), tonumber(horizon or 0), tonumber(count or 0)

if ARGV[1] == 'poll' then
  local most, name = tonumber(ARGV[4]), ARGV[5]
  if name ~= '' then
    if ARGV[6] ~= name then redis.call('ZREM', KEYS[6], ARGV[6]) end
    redis.call('ZADD', KEYS[6], ms(now), name)
    redis.call('ZREMRANGEBYSCORE', KEYS[6], '-inf', ms(now - 60000000))
    redis.call('PEXPIRE', KEYS[6], '60000')
  end
  local since, out, more = tonumber(ARGV[3]), {}, 0
  if revision > since and (since == 0 or epoch == ARGV[2]) then
    local found = redis.call('ZRANGEBYSCORE', KEYS[3], '(' .. ARGV[3], '+inf', 'WITHSCORES', 'LIMIT', '0', text(most))
    for i = 1, #found, 2 do out[#out + 1] = found[i] end
    if #out == most then
      more, revision = 1, tonumber(found[#found])
    end
  end
  return {epoch or '', text(revision), text(floor), text(horizon), more, redis.call('ZCARD', KEYS[3]) == count and 0 or 1, out}
end

if ARGV[1] == 'here' then
  return redis.call('ZRANGEBYSCORE', KEYS[6], ms(now - 5000000), '+inf')
end

if ARGV[1] == 'leave' then
  return redis.call('ZREM', KEYS[6], ARGV[2])
end

-- forget removes a note and everything about it.
local function forget(id)
  local at = redis.call('ZSCORE', KEYS[2], id)
  if at then redis.call('ZREMRANGEBYSCORE', KEYS[3], at, at) end
  redis.call('ZREM', KEYS[2], id)
  redis.call('ZREM', KEYS[4], id)
  redis.call('ZREM', KEYS[5], id)
end

-- made_at returns when the note of a revision was made, or −1 if there is none that can be read.
local function made_at(at)
  return tonumber(string.match(redis.call('ZRANGEBYSCORE', KEYS[3], at, at)[1] or '', '^%d+') or -1)
end

-- If keys were evicted one by one, everything begins anew, and replicas put back what they know.
local held = redis.call('ZCARD', KEYS[2])
if not epoch or held ~= count or held ~= redis.call('ZCARD', KEYS[3]) or held ~= redis.call('ZCARD', KEYS[4]) + redis.call('ZCARD', KEYS[5]) then
  redis.call('UNLINK', KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5])
  epoch, revision, floor, horizon = ARGV[2], 0, 0, 0
end

local most, back, raised = tonumber(ARGV[3]), ARGV[4] == '1', tonumber(ARGV[5])
if not back then
  local new = 0
  for i = 6, #ARGV, 5 do
    local ends = ARGV[i + 2] == '0' and redis.call('ZSCORE', KEYS[4], ARGV[i])
    if ARGV[i + 2] == '0' and (not ends or tonumber(ends) * 1000 <= now) then new = new + 1 end
  end
  if new > most or new > 0 and redis.call('ZRANGEBYSCORE', KEYS[4], '(' .. ms(now), '+inf', 'LIMIT', text(most - new), '1')[1] then
    return 'full'
  end
end

-- Of what has ended the last 1,000 stay, for a day by this clock, since by other clocks it may not have ended. The rest is swept,
-- a few at a time.
local ended = redis.call('ZRANGEBYSCORE', KEYS[4], '-inf', ms(now), 'WITHSCORES', 'LIMIT', '0', '1200')
local more = #ended / 2 - 1000
for i = 1, math.min(#ended / 2, 200) do
  if i <= more or ended[2 * i] * 1000 < now - 86400000000 then forget(ended[2 * i - 1]) end
end

local times = {}
for i = 6, #ARGV, 5 do
  local id, ends, gone, made, says = ARGV[i], ARGV[i + 1], ARGV[i + 2], ARGV[i + 3], ARGV[i + 4]
  local at = redis.call('ZSCORE', KEYS[2], id)
  local before = at and made_at(at) or -1
  if back then made = tonumber(made) else made = math.max(now, before + 1, horizon + 1) end
  if made > before and not (back and not at and made <= horizon) then
    forget(id)
    revision = revision + 1
    redis.call('ZADD', KEYS[2], text(revision), id)
    redis.call('ZADD', KEYS[3], text(revision), table.concat({text(made), ends, gone, id, says}, ' '))
    if gone == '1' then redis.call('ZADD', KEYS[5], text(revision), id) else redis.call('ZADD', KEYS[4], ends, id) end
  end
  times[#times + 1] = text(made)
end
if back then horizon = math.max(horizon, raised) end

-- Of those that were taken away the last 1,000 stay.
local over = redis.call('ZCARD', KEYS[5]) - 1000
if over > 0 then
  local first = redis.call('ZRANGEBYSCORE', KEYS[5], '-inf', '+inf', 'WITHSCORES', 'LIMIT', '0', text(over))
  for i = 1, #first, 2 do
    floor, horizon = math.max(floor, tonumber(first[i + 1])), math.max(horizon, made_at(first[i + 1]))
    forget(first[i])
  end
end
redis.call('SET', KEYS[1], table.concat({epoch, text(revision), text(floor), text(horizon), text(redis.call('ZCARD', KEYS[3]))}, ' '))
return times
