-- A register: short texts under keys, which replicas share beside the counters.
--
-- Each change gets the next number, and each call that changes something has a random tag. A replica that has read up to a number, and was
-- told the tag of that time, has read what Redis has up to there, as long as Redis knows that tag. If Redis falls back to an earlier state
-- it may use the number again, but not the tag. A replica replaces only what it has read, so it is the replica that decides which of two
-- entries is later.
--
-- KEYS[1]  key → entry. The empty key has 'number tag entries ends': the last number and tag, how many entries there are, and how many of
--          them expire
-- KEYS[2]  key → number of its last change
-- KEYS[3]  key → expires (ms since the epoch), of the entries that do
-- KEYS[4]  tag → the last number of its call, of the last 10,000
-- KEYS[5]  name of a replica → when it was last here (ms)
-- KEYS[6]  a secret
--
-- ARGV[1]  what to do
--   changes  ARGV[2..7]: number and tag that are known, the most entries to return, name of a replica that is here or '', the name that
--            it had before or '', the most entries there may be
--            result: 1 if the tag is known, else 0, and then the entries begin with the first; number of the last entry returned, or of
--            all; tag; now (µs); 1 if there are more, else 0; key and entry in turn, 80 KB at most, where an entry that is too large is ''
--   put      ARGV[2..5]: number and tag that are known, a new tag, the most entries there may be or 0 for any number; then for each
--            entry key, how, expires (0 for never) and entry. how is 'new'; 'again', which does nothing if the key has been changed after
--            the number; or 'gone', to take away what is there
--            result: the tag that is then known; or, and nothing is stored, 'full', or 'behind' if the tag is not known or a key that is
--            'new' or 'gone' has been changed after the number
--   here     result: names of the replicas that were here in the last 5 s, the latest last; or nil if too many or too long ones were
--            written there: then all are forgotten
--   leave    ARGV[2]: name of a replica
--   secret   ARGV[2]: the secret, if there is none yet; result: the secret, or '' if what is there is too long
local LARGEST, NAMES, NAME = 32768, 10000, 1024 -- bytes of an entry; replicas; bytes of the name of one, of a key or of the secret
local what = ARGV[1]
if what == 'secret' then
  redis.call('SET', KEYS[6], ARGV[2], 'NX')
  return redis.call('STRLEN', KEYS[6]) <= NAME and redis.call('GET', KEYS[6]) or ''
end
if what == 'leave' then return redis.call('ZREM', KEYS[5], ARGV[2]) end

local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local function text(n) return string.format('%.0f', n) end
local function ms(n) return text(math.floor(n / 1000)) end

if what == 'here' then
  local names = redis.call('ZCARD', KEYS[5]) <= NAMES and redis.call('ZRANGEBYSCORE', KEYS[5], ms(now - 5000000), '+inf')
  for _, name in ipairs(names or {}) do
    if #name > NAME then names = false end
  end
  if not names then redis.call('UNLINK', KEYS[5]) end
  return names
end

-- read returns an entry, '' if it is too large, or nil if there is none.
local function read(key)
  if redis.call('HSTRLEN', KEYS[1], key) > LARGEST then return '' end
  return redis.call('HMGET', KEYS[1], key)[1] or nil
end

-- If keys were evicted one by one, or another program wrote a number that leaves none for later changes, the rest is worth nothing: the
-- register is as if it were empty, and replicas put back what they know.
local number, tag, entries, ends = string.match(read('') or '', '^(%d+) (%S+) (%d+) (%d+)$')
if not tag or redis.call('ZCARD', KEYS[2]) ~= tonumber(entries) or redis.call('ZCARD', KEYS[3]) ~= tonumber(ends)
  or tonumber(number) > 4503599627370496 or redis.call('ZRANGEBYSCORE', KEYS[2], '(' .. number, '+inf', 'LIMIT', '0', '1')[1] then
  number, tag = 0, ''
end
number = tonumber(number)

-- knows reports whether Redis has what was read up to a number, when it had a tag.
local function knows(since, of)
  if since > number then return false end
  return of == tag or tag ~= '' and tonumber(redis.call('ZSCORE', KEYS[4], of) or -1) >= since
end

local since = tonumber(ARGV[2])
local known = knows(since, ARGV[3])

if what == 'changes' then
  local most, name = tonumber(ARGV[4]), ARGV[5]
  if number > 0 and redis.call('ZCARD', KEYS[2]) > tonumber(ARGV[7]) then
    return redis.error_reply('ERR ' .. KEYS[2] .. ' has more than ' .. ARGV[7] .. ' entries, which no server wrote: delete ' .. KEYS[1])
  end
  if name ~= '' then
    if ARGV[6] ~= name then redis.call('ZREM', KEYS[5], ARGV[6]) end
    redis.call('ZADD', KEYS[5], ms(now), name)
    redis.call('ZREMRANGEBYSCORE', KEYS[5], '-inf', ms(now - 60000000))
    redis.call('PEXPIRE', KEYS[5], '60000')
  end
  if not known then since = 0 end
  local out, size, more = {}, 0, 0
  if number > since then
    local found = redis.call('ZRANGEBYSCORE', KEYS[2], '(' .. text(since), '+inf', 'WITHSCORES', 'LIMIT', '0', text(most))
    local i = 1
    while i < #found and size < 48000 do
      local key, entry = found[i], ''
      if #key <= NAME then entry = read(key) else key = string.sub(key, 1, NAME) end
      if entry then
        out[#out + 1] = key
        out[#out + 1] = entry
        size = size + #key + #entry
      end
      i = i + 2
    end
    if i > 2 * most or i < #found then more, number = 1, tonumber(found[i - 1]) end
  end
  return {known and 1 or 0, text(number), tag, text(now), more, out}
end

if not known then return 'behind' end
if tag == '' then redis.call('UNLINK', KEYS[1], KEYS[2], KEYS[3], KEYS[4]) end

-- changed reports whether a key has been changed after what was read.
local function changed(key) return tonumber(redis.call('ZSCORE', KEYS[2], key) or 0) > since end

-- unable returns why nothing can be stored, or nil.
local function unable()
  local most, new = tonumber(ARGV[5]), 0
  for i = 6, #ARGV, 4 do
    if ARGV[i + 1] ~= 'again' and changed(ARGV[i]) then return 'behind' end
    if ARGV[i + 1] ~= 'gone' and not redis.call('ZSCORE', KEYS[2], ARGV[i]) then new = new + 1 end
  end
  if most > 0 and new > 0 and redis.call('ZCARD', KEYS[2]) + new > most then return 'full' end
end

local function forget(key)
  redis.call('HDEL', KEYS[1], key)
  redis.call('ZREM', KEYS[3], key)
  return redis.call('ZREM', KEYS[2], key)
end

-- What has expired stays for a minute, for clocks differ. Then it is forgotten, a few at a time.
local first, gone = number, 0
for _, key in ipairs(redis.call('ZRANGEBYSCORE', KEYS[3], '-inf', ms(now - 60000000), 'LIMIT', '0', '50')) do
  gone = gone + forget(key)
end

local result = unable()
for i = 6, result and 0 or #ARGV, 4 do
  local key, how, expires = ARGV[i], ARGV[i + 1], ARGV[i + 2]
  if how == 'gone' then
    gone = gone + forget(key)
  elseif how == 'new' or not changed(key) then
    number = number + 1
    redis.call('HSET', KEYS[1], key, ARGV[i + 3])
    redis.call('ZADD', KEYS[2], text(number), key)
    if expires == '0' then redis.call('ZREM', KEYS[3], key) else redis.call('ZADD', KEYS[3], expires, key) end
  end
end
if number > first then
  tag = ARGV[4]
  redis.call('ZADD', KEYS[4], text(number), tag)
  local old = math.min(redis.call('ZCARD', KEYS[4]) - 10000, 100)
  if old > 0 then redis.call('ZREM', KEYS[4], unpack(redis.call('ZRANGEBYSCORE', KEYS[4], '-inf', '+inf', 'LIMIT', '0', text(old)))) end
end
if number > first or gone > 0 then
  redis.call('HSET', KEYS[1], '', table.concat({text(number), tag, text(redis.call('ZCARD', KEYS[2])), text(redis.call('ZCARD', KEYS[3]))}, ' '))
end
return result or (number > first and tag or ARGV[3])
