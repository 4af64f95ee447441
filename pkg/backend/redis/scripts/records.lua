-- Records that replicas share: short texts under names, of which there may be millions. What changed since a revision is one
-- range of a sorted set, so that nobody ever reads all to find out, and all can be read in parts of any size.
-- One that was taken away stays among the changes for a day, so that who was away learns of it; who was away longer reads all.
--
-- KEYS[1]  epoch, revision and the last revision that was swept, as text: the revision rises with each change, the epoch is
--          new when everything is
-- KEYS[2]  hash, name → text; the empty name has the epoch
-- KEYS[3]  name → revision
-- KEYS[4]  name → when it was taken away (ms)
--
-- ARGV[1]  what to do
--   poll   ARGV[2..5]: epoch and revision that are known, the most records to return, 1 for who has read a part of all, less than a
--          day ago, and goes on: nothing can have been forgotten that it has read; 0 for others
--          result: epoch, or '' if there are no records and never were any, revision of the last one returned, or of all, 1 if
--          there are more, 1 if these are the first of all, and name and text of each in turn; the text of one that is gone is ''
--   put    ARGV[2..4]: epoch if there is none yet, the most records there may be, 1 if only what is lacking is put back or 0;
--          then for each record name and text, '' to take it away
--          result: the text that each had before, '' if there was none; or, and nothing is changed, 'full', or 'lost' if there is no
--          epoch and nothing is put back: so who knows what there was can put that back first
local function text(n) return string.format('%.0f', n) end

local epoch, revision, swept = string.match(redis.call('GET', KEYS[1]) or '', '^(%S+) (%d+) (%d+)$')
revision, swept = tonumber(revision or 0), tonumber(swept or 0)
-- If keys were evicted one by one, what is left is worth nothing.
if epoch and (redis.call('HMGET', KEYS[2], '')[1] ~= epoch or revision > 0 and redis.call('ZCARD', KEYS[3]) == 0) then epoch = nil end

if ARGV[1] == 'poll' then
  if not epoch then return {'', '0', 0, 1, {}} end
  local since, most, anew = tonumber(ARGV[3]), tonumber(ARGV[4]), 0
  if epoch ~= ARGV[2] or since < swept and ARGV[5] ~= '1' or since > revision then since, anew = 0, 1 end
  local found, names, out, more = {}, {}, {}, 0
  if revision > since then
    found = redis.call('ZRANGEBYSCORE', KEYS[3], '(' .. text(since), '+inf', 'WITHSCORES', 'LIMIT', '0', text(most))
  end
  for i = 1, #found, 2 do names[#names + 1] = found[i] end
  if #names > 0 then
    local texts = redis.call('HMGET', KEYS[2], unpack(names))
    for i = 1, #names do
      out[#out + 1] = names[i]
      out[#out + 1] = texts[i] or ''
    end
  end
  if #names == most then more, revision = 1, tonumber(found[#found]) end
  return {epoch, text(revision), more, anew, out}
end

if not epoch then
  if ARGV[4] == '0' then return 'lost' end
  redis.call('UNLINK', KEYS[1], KEYS[2], KEYS[3], KEYS[4])
  epoch, revision, swept = ARGV[2], 0, 0
  redis.call('HSET', KEYS[2], '', epoch)
end
if redis.call('ZCARD', KEYS[3]) + (#ARGV - 4) / 2 > tonumber(ARGV[3]) then return 'full' end

local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local before = {}
for i = 5, #ARGV, 2 do
  local name, says = ARGV[i], ARGV[i + 1]
  local was = redis.call('HMGET', KEYS[2], name)[1] or ''
  local kept = ARGV[4] == '1' and (was ~= '' or redis.call('ZSCORE', KEYS[4], name)) -- what was taken away since stays so
  if says ~= was and not kept then
    revision = revision + 1
    redis.call('ZADD', KEYS[3], text(revision), name)
    if says ~= '' then
      redis.call('HSET', KEYS[2], name, says)
      redis.call('ZREM', KEYS[4], name)
    else
      redis.call('HDEL', KEYS[2], name)
      redis.call('ZADD', KEYS[4], text(now), name)
    end
  end
  before[#before + 1] = was
end

-- What was taken away more than a day ago is forgotten, a few at a time.
for _, name in ipairs(redis.call('ZRANGEBYSCORE', KEYS[4], '-inf', text(now - 86400000), 'LIMIT', '0', '100')) do
  swept = math.max(swept, tonumber(redis.call('ZSCORE', KEYS[3], name) or 0))
  redis.call('ZREM', KEYS[3], name)
  redis.call('ZREM', KEYS[4], name)
end
redis.call('SET', KEYS[1], table.concat({epoch, text(revision), text(swept)}, ' '))
return before
