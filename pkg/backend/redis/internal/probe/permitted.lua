-- Finds out which of the commands that scripts call the user may not call. Changes nothing.
--
-- ARGV: a key that is no counter's, and words among which are the names of commands
-- Result: the names of the commands that the user may not call, and a tilde if it may not use the key

-- What follows the key, for commands that change nothing with it.
local rest = {
  GET = {}, HDEL = {'x'}, HMGET = {'x'}, HSET = {'x', 'y', 'z'}, INCRBY = {'x'}, LINDEX = {'0'}, LLEN = {},
  LRANGE = {'0', '1'}, LSET = {'0', 'x'}, LTRIM = {'0', '-1'}, MGET = {}, PEXPIRE = {'x'},
  SET = {'x', 'y'}, SETRANGE = {'x', 'y'}, UNLINK = {},
}
-- The same for commands that are called only if the key holds a text or is out of reach, because they would create it.
local creates = {RPUSH = {'x'}}

local key, denied, keys = ARGV[1], {}, false

-- allowed calls a command and notes whether the user may do so. Returns its reply.
local function allowed(name, ...)
  local reply = redis.pcall(name, ...)
  local err = type(reply) == 'table' and reply.err or ''
  if string.find(err, 'NOPERM', 1, true) or string.find(err, 'executing the script', 1, true) then
    if string.find(err, 'access', 1, true) then keys = true else denied[#denied + 1] = name end
  end
  return reply
end

local made = redis.pcall('SET', key, '', 'PX', '100')
local safe = made.ok or string.find(made.err, 'non local', 1, true) -- of another node of a cluster
for i = 2, #ARGV do
  local name = ARGV[i]
  if name == 'TIME' then
    allowed(name)
  elseif rest[name] then
    allowed(name, key, unpack(rest[name]))
  elseif creates[name] and safe then
    allowed(name, key, unpack(creates[name]))
  end
end
if made.ok then redis.pcall('UNLINK', key) end
if keys then denied[#denied + 1] = '~' end
return denied
