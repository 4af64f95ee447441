-- A register: short texts under keys, which replicas share in the store of the counters.
--
-- Each change gets the next number, and each call that changes something has a random tag. While Redis knows the tag of a replica's
-- revision, the replica has read everything up to the revision's number. If Redis falls back to an earlier state, it may use a number
-- again, but not a tag. A replica replaces only entries that it has read, so the replica decides which of two entries is later.
--
-- KEYS[1]  key → entry. The empty key holds 'number tag entries ends': the last number and tag, and the numbers of entries and of
--          entries that expire
-- KEYS[2]  key → number of its last change
-- KEYS[3]  key → time of expiry (ms since the epoch), for entries that expire
-- KEYS[4]  tag → last number of its call, for the last 10,000 tags
-- KEYS[5]  name of a replica → last time of a heartbeat (ms)
-- KEYS[6]  the secret
--
-- ARGV[1]  command
--   changes  ARGV[2..7]: number and tag of the replica's revision, maximum number of entries to return, name of the replica for a
--            heartbeat or '', its previous name or '', maximum number of entries in the register
--            result: 1 if the tag is known; otherwise 0, and entries are returned from the first; number of the last entry returned or,
--            if there are no more, of the last change; tag; now (µs); 1 if there are more, else 0; key and entry alternate, 80 KB at most;
--            an entry that is too large is ''
--   put      ARGV[2..5]: number and tag of the replica's revision, a new tag, maximum number of entries or 0 for unlimited; then for each
--            entry: key, how, time of expiry (0 for never), and entry. how is 'new'; 'again', which skips a key that changed after the
--            number; or 'gone', which removes the entry
--            result: the revision's new tag; or, without any change, 'full', or 'behind' if the tag is unknown or a 'new' or 'gone' key
--            changed after the number
--   here     result: names of the replicas with a heartbeat in the last 5 s, latest last; nil, after deleting all, if there are too
--            many names or one is too long
--   leave    ARGV[2]: name of the replica
--   secret   ARGV[2]: the secret to store if there is none; result: the secret, or '' if the stored one is too long
local LARGEST, NAMES, NAME = 32768, 10000, 1024 -- bytes of an entry; replicas; bytes of a replica's name, a key, or the secret
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

-- If single keys were evicted, or another program wrote a number so high that no later ones exist, the remaining entries are useless:
-- treat the register as empty, so that replicas store their entries again.
local number, tag, entries, ends = string.match(read('') or '', '^(%d+) (%S+) (%d+) (%d+)$')
if not tag or redis.call('ZCARD', KEYS[2]) ~= tonumber(entries) or redis.call('ZCARD', KEYS[3]) ~= tonumber(ends)
  or tonumber(number) > 4503599627370496 or redis.call('ZRANGEBYSCORE', KEYS[2], '(' .. number, '+inf', 'LIMIT', '0', '1')[1] then
  number, tag = 0, ''
end
number = tonumber(number)

-- knows reports whether Redis still has the changes up to a number that had this tag.
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

-- changed reports whether a key changed after the replica's revision.
local function changed(key) return tonumber(redis.call('ZSCORE', KEYS[2], key) or 0) > since end

-- unable returns the reason why nothing can be stored, or nil.
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

-- Expired entries stay for a minute, because clocks differ. Then they are deleted, at most 50 in each call.
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
