-- The latest acts of operators. Each act has a unique id.
--
-- KEYS[1]  id of an act → its number
-- KEYS[2]  id → act; the empty id holds the last number
--
-- ARGV[1]  command
--   append  ARGV[2]: number of acts to keep; then id and act alternate
--   page    ARGV[2..3]: number of latest acts to skip, and number of acts to return before them; result: acts, oldest first, where an
--           act that is too large or missing is ''
local LARGEST = 4096 -- bytes of an act

local function read(id)
  return redis.call('HSTRLEN', KEYS[2], id) <= LARGEST and redis.call('HMGET', KEYS[2], id)[1] or ''
end

local function text(n) return string.format('%.0f', n) end

local last, most = tonumber(read('')) or 0, tonumber(ARGV[2])
if ARGV[1] == 'page' then
  local to, n, acts = last - most, tonumber(ARGV[3]), {}
  for i, id in ipairs(redis.call('ZRANGEBYSCORE', KEYS[1], '(' .. text(to - n), text(to), 'LIMIT', '0', text(n))) do
    acts[i] = read(id)
  end
  return acts
end
for i = 3, #ARGV, 2 do
  if not redis.call('ZSCORE', KEYS[1], ARGV[i]) then
    last = last + 1
    redis.call('ZADD', KEYS[1], text(last), ARGV[i])
    redis.call('HSET', KEYS[2], ARGV[i], ARGV[i + 1], '', text(last))
  end
end
for _, id in ipairs(redis.call('ZRANGEBYSCORE', KEYS[1], '-inf', text(last - most), 'LIMIT', '0', '100')) do
  redis.call('ZREM', KEYS[1], id)
  redis.call('HDEL', KEYS[2], id)
end
