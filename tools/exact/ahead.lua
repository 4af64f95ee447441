-- Has the entries of a register made 30 s later than they were, as changes that replicas read.
--
-- KEYS  entries and changed of register.lua
local entries, changed = KEYS[1], KEYS[2]
local number, rest = string.match(redis.call('HGET', entries, ''), '^(%d+) (.*)$')
number = tonumber(number)
for _, key in ipairs(redis.call('ZRANGE', changed, 0, -1)) do
  local made, text = string.match(redis.call('HGET', entries, key), '^(%d+) (.*)$')
  number = number + 1
  redis.call('HSET', entries, key, string.format('%.0f %s', made + 30e6, text))
  redis.call('ZADD', changed, number, key)
end
return redis.call('HSET', entries, '', string.format('%.0f %s', number, rest))
