-- A register: short texts under keys, which replicas share beside the counters.
--
-- Of two entries under one key the later one counts, and it expires no earlier than the other one would have. So it stays for as long as
-- another call can put the other one back.
-- Each change gets the next number, and each call that changes something has a random tag. Who has read up to a number, and been told
-- the tag of that time, has read what Redis has up to there, as long as Redis knows that tag. If Redis falls back to an earlier state it
-- may use the number again, but not the tag.
--
-- KEYS[1]  key → 'made expires text' (µs and ms since the epoch; expires is 0 for never). The empty key has 'number tag entries ends':
--          the last number and tag, how many entries there are, and how many of them expire
-- KEYS[2]  key → number of its last change
-- KEYS[3]  key → expires, of the entries that do
-- KEYS[4]  tag → the last number of its call, of the last 10,000
-- KEYS[5]  name of a replica → when it was last here (ms)
-- KEYS[6]  a secret
--
-- ARGV[1]  what to do
--   changes  ARGV[2..6]: number and tag that are known, the most entries to return, name of a replica that is here or '', the name that
--            it had before or ''
--            result: 1 if the tag is known, else 0, and then the entries begin with the first; number of the last entry returned, or of
--            all; tag; now (µs); 1 if there are more, else 0; key and entry in turn, 64 KB at most
--   put      ARGV[2..5]: number and tag that are known, a new tag, the most entries there may be or 0 for any number; then for each
--            entry key, made, expires and text. made is 'now', 'there' for now if there is an entry under the key, or when an entry was
--            made that is put back.
--            result: the tag that is then known, and when each was made; or, and nothing is stored, 'full', or 'unknown' if the tag is
--   here     result: names of the replicas that were here in the last 5 s, the latest last
--   leave    ARGV[2]: name of a replica
--   secret   ARGV[2]: the secret, if there is none yet; result: the secret
local what = ARGV[1]
if what == 'secret' then
  redis.call('SET', KEYS[6], ARGV[2], 'NX')
  return redis.call('GET', KEYS[6])
end
if what == 'leave' then return redis.call('ZREM', KEYS[5], ARGV[2]) end

local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local function text(n) return string.format('%.0f', n) end
local function ms(n) return text(math.floor(n / 1000)) end

if what == 'here' then return redis.call('ZRANGEBYSCORE', KEYS[5], ms(now - 5000000), '+inf') end

local function read(key) return redis.call('HMGET', KEYS[1], key)[1] or nil end

-- If keys were evicted one by one, the rest is worth nothing: the register is as if it were empty, and replicas put back what they know.
local number, tag, entries, ends = string.match(read('') or '', '^(%d+) (%S+) (%d+) (%d+)$')
if not tag or redis.call('ZCARD', KEYS[2]) ~= tonumber(entries) or redis.call('ZCARD', KEYS[3]) ~= tonumber(ends) then
  number, tag = 0, ''
end
number = tonumber(number)

-- knows reports whether Redis has what was read up to a number, when it had a tag.
local function knows(since, of)
  if since > number then return false end
  return of == tag or tag ~= '' and tonumber(redis.call('ZSCORE', KEYS[4], of) or -1) >= since
end

if what == 'changes' then
  local since, most, name = tonumber(ARGV[2]), tonumber(ARGV[4]), ARGV[5]
  if name ~= '' then
    if ARGV[6] ~= name then redis.call('ZREM', KEYS[5], ARGV[6]) end
    redis.call('ZADD', KEYS[5], ms(now), name)
    redis.call('ZREMRANGEBYSCORE', KEYS[5], '-inf', ms(now - 60000000))
    redis.call('PEXPIRE', KEYS[5], '60000')
  end
  local known = knows(since, ARGV[3])
  if not known then since = 0 end
  local out, size, more = {}, 0, 0
  if number > since then
    local found = redis.call('ZRANGEBYSCORE', KEYS[2], '(' .. text(since), '+inf', 'WITHSCORES', 'LIMIT', '0', text(most))
    local i = 1
    while i < #found and size < 48000 do
      local entry = read(found[i])
      if entry then
        out[#out + 1] = found[i]
        out[#out + 1] = entry
        size = size + #found[i] + #entry
      end
      i = i + 2
    end
    if i > 2 * most or i < #found then more, number = 1, tonumber(found[i - 1]) end
  end
  return {known and 1 or 0, text(number), tag, text(now), more, out}
end

if not knows(tonumber(ARGV[2]), ARGV[3]) then return 'unknown' end
if tag == '' then redis.call('UNLINK', KEYS[1], KEYS[2], KEYS[3], KEYS[4]) end

-- What has expired stays for a minute, for clocks differ. Then it is forgotten, a few at a time.
local over = redis.call('ZRANGEBYSCORE', KEYS[3], '-inf', ms(now - 60000000), 'LIMIT', '0', '50')
for _, key in ipairs(over) do
  redis.call('HDEL', KEYS[1], key)
  redis.call('ZREM', KEYS[2], key)
  redis.call('ZREM', KEYS[3], key)
end

-- full reports whether there would be too many entries.
local function full()
  local most, has = tonumber(ARGV[5]), redis.call('ZCARD', KEYS[2])
  if most == 0 or has + (#ARGV - 5) / 4 <= most then return false end
  local new = 0
  for i = 6, #ARGV, 4 do
    if ARGV[i + 1] ~= 'there' and not read(ARGV[i]) then new = new + 1 end
  end
  return new > 0 and has + new > most
end

-- store stores an entry, and returns when it was made. An entry that is made now is later than others of the same call before it.
local function store(key, made, expires, says, last)
  local was = read(key)
  if not was and made == 'there' then return last end
  local before, lasts, said = string.match(was or '', '^(%d+) (%d+) (.*)$')
  before, lasts = tonumber(before or 0), tonumber(lasts or 0)
  local ended = lasts > 0
  made = tonumber(made) or math.max(now, before + 1, last)
  if made <= before then -- the later one is there
    made, expires, says, lasts = before, lasts, said, expires
  end
  if expires > 0 then expires = math.max(expires, lasts) end
  local entry = text(made) .. ' ' .. text(expires) .. ' ' .. says
  if entry ~= was then
    number = number + 1
    redis.call('HSET', KEYS[1], key, entry)
    redis.call('ZADD', KEYS[2], text(number), key)
    if expires > 0 then
      redis.call('ZADD', KEYS[3], text(expires), key)
    elseif ended then
      redis.call('ZREM', KEYS[3], key)
    end
  end
  return made
end

local result, first = {ARGV[3]}, number
if full() then
  result = 'full'
else
  local last = 0
  for i = 6, #ARGV, 4 do
    last = store(ARGV[i], ARGV[i + 1], tonumber(ARGV[i + 2]), ARGV[i + 3], last)
    result[#result + 1] = text(last)
  end
end
if number > first then
  tag = ARGV[4]
  result[1] = tag
  redis.call('ZADD', KEYS[4], text(number), tag)
  local old = redis.call('ZCARD', KEYS[4]) - 10000
  if old > 0 then redis.call('ZREM', KEYS[4], unpack(redis.call('ZRANGEBYSCORE', KEYS[4], '-inf', '+inf', 'LIMIT', '0', text(old)))) end
end
if number > first or #over > 0 then
  redis.call('HSET', KEYS[1], '', table.concat({text(number), tag, text(redis.call('ZCARD', KEYS[2])), text(redis.call('ZCARD', KEYS[3]))}, ' '))
end
return result
