-- What operators changed, as one list, of which the last acts are kept.
--
-- KEYS[1]  the list
--
-- ARGV[1]  what to do
--   append  ARGV[2]: how many are kept; then the acts; result: how many there are
--   page    ARGV[2..3]: how many of the last ones to leave out, and how many to return before those; result: these, in order
if ARGV[1] == 'page' then
  return redis.call('LRANGE', KEYS[1], -ARGV[2] - ARGV[3], -ARGV[2] - 1)
end
for i = 3, #ARGV do redis.call('RPUSH', KEYS[1], ARGV[i]) end
redis.call('LTRIM', KEYS[1], -ARGV[2], -1)
return redis.call('LLEN', KEYS[1])
