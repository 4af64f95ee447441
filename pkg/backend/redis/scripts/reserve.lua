
-- A limit with reservations, whose hits are consumed immediately and settled later. Mirrors pkg/engine/reserve.go.
--
-- state  a hash, and a sorted set of the names of open reservations, by expiry. The hash has under each name, packed, its
--        hits and the time when they were consumed (the start of the window, if there are windows); and under '', packed,
--        the sum of these hits and the time from which everything is irrelevant. If names may repeat, also a sorted set of
--        the names of ended reservations, by the time when they are forgotten. The hash has under such a name, packed, the
--        hits that stay consumed, the number of settlements that are still charged, and the time when it is forgotten
-- reserve  ttl: lifetime of a reservation; keeps: time after that for which its state is kept, so that it can be ended; back:
--          1 if unsettled hits are refunded; named: 1 if the operation names a reservation; and its name, 12 bytes
--
-- A decision has five more fields: the hits of open reservations, the number of expired ones, the outcome of the named one (0 to 7, as in
-- Go), and the hits refunded and charged by its settlement.
local MOST_RESERVED, MOST_ENDED, EXPIRE_AT_ONCE = 10000, 1000, 20
local reserve

local function str(n) return string.format('%.0f', n) end

local function forget_reserved()
  redis.call('UNLINK', reserve.hash, reserve.set)
  if reserve.ended then redis.call('UNLINK', reserve.ended) end
  reserve.sum, reserve.gone = 0, 0
end

-- record returns the hits of a packed record, and the time when they were consumed; 0 each if no script wrote it.
local function record(text)
  if not text or #text ~= 16 then return 0, 0 end
  local hits, at = struct.unpack('<dd', text)
  if integer(hits, MAX) and integer(at, MAX) then return hits, at end
  return 0, 0
end

-- write_reserved writes the field ''. If longer is set, it extends the lifetime of the keys.
local function write_reserved(longer)
  redis.call('HSET', reserve.hash, '', struct.pack('<dd', reserve.sum, reserve.gone))
  if longer then
    local keep = ttl(reserve.gone)
    redis.call('PEXPIRE', reserve.hash, keep)
    redis.call('PEXPIRE', reserve.set, keep)
    if reserve.ended then redis.call('PEXPIRE', reserve.ended, keep) end
  end
end

-- remember stores an ended reservation with the hits that stay consumed and the number of settlements that are still charged.
local function remember(name, kept, due)
  if not reserve.ended then return end
  local forgets = now + reserve.ttl
  redis.call('ZADD', reserve.ended, str(forgets), name)
  redis.call('HSET', reserve.hash, name, struct.pack('<ddd', kept, due, forgets))
  local count = redis.call('ZCARD', reserve.ended)
  if forgets > reserve.gone then
    reserve.gone = forgets
    write_reserved(true)
  elseif count == 1 then
    redis.call('PEXPIRE', reserve.ended, ttl(reserve.gone))
  end
  if count > MOST_ENDED then
    local oldest = redis.call('ZRANGEBYSCORE', reserve.ended, '-inf', '+inf', 'LIMIT', '0', str(EXPIRE_AT_ONCE))
    redis.call('ZREM', reserve.ended, unpack(oldest))
    redis.call('HDEL', reserve.hash, unpack(oldest))
  end
end

-- forget_if_empty forgets everything if no reservation is open or remembered, and reports whether that is so.
local function forget_if_empty()
  if redis.call('ZCARD', reserve.set) > 0 or (reserve.ended and redis.call('ZCARD', reserve.ended) > 0) then return false end
  forget_reserved()
  return true
end

-- remove removes open reservations with the given sum of hits. remembered is true if the hash has them as ended ones.
local function remove(names, hits, remembered)
  redis.call('ZREM', reserve.set, unpack(names))
  if not remembered then
    if forget_if_empty() then return end
    redis.call('HDEL', reserve.hash, unpack(names))
  end
  reserve.sum = math.max(0, reserve.sum - hits)
  write_reserved(false)
end

-- refund refunds hits consumed at a time, if they still count.
local function refund(hits, at)
  local l, f = limits[1], family[1]
  set(hits, at, 0, 4)
  f.give(l, f.view(l), at)
end

-- finish remembers an expired reservation, and returns the hits that stay consumed.
local function finish(name, hits, at)
  if reserve.back == 1 then
    refund(hits, at)
    hits = 0
  end
  remember(name, hits, 1)
  return hits
end

-- hold keeps the reserved hits of a token bucket from coming back before the given time.
local function hold(hits, ended)
  set(0, 0, 0, 4)
  if family[1].hold then family[1].hold(limits[1], hits, ended) end
end

-- expire ends expired reservations and returns their number.
local function expire()
  local found = redis.call('ZRANGEBYSCORE', reserve.set, '-inf', str(now), 'WITHSCORES', 'LIMIT', '0', str(EXPIRE_AT_ONCE))
  if #found == 0 then
    hold(reserve.sum, now)
    return 0
  end
  local names, sum = {}, 0
  for i = 1, #found, 2 do names[#names + 1] = found[i] end
  local texts = redis.call('HMGET', reserve.hash, unpack(names))
  for i = 1, #names do
    local hits, at = record(texts[i])
    local expired = tonumber(found[2 * i])
    if not integer(expired, MAX) then expired = now end -- no script wrote it
    hold(math.max(0, reserve.sum - sum), expired)
    sum = sum + hits
    finish(names[i], hits, at)
  end
  hold(math.max(0, reserve.sum - sum), now)
  remove(names, sum, reserve.ended)
  return #names
end

-- begin reads the state and ends expired reservations.
local function begin()
  reserve.sum, reserve.gone = 0, 0
  local state = redis.call('HMGET', reserve.hash, '')[1]
  if not state then return 0 end
  reserve.sum, reserve.gone = record(state)
  if now >= reserve.gone then
    forget_reserved()
    return 0
  end
  return expire()
end

-- add stores the record of a reservation, unless there are too many, or one has the same name. It returns the outcome.
local function add(hits, at)
  local open = redis.call('ZCARD', reserve.set)
  if open >= MOST_RESERVED or redis.call('ZSCORE', reserve.set, reserve.name) then return 2 end
  local expires = now + reserve.ttl
  redis.call('ZADD', reserve.set, str(expires), reserve.name)
  redis.call('HSET', reserve.hash, reserve.name, struct.pack('<dd', hits, at))
  reserve.sum = math.min(reserve.sum + hits, MAX)
  local longer = open == 0 or expires + reserve.keeps > reserve.gone -- a new set has no expiry yet, even if ended ones keep the hash
  reserve.gone = math.max(reserve.gone, expires + reserve.keeps)
  write_reserved(longer)
  return 1
end

-- charge consumes hits whether they fit or not.
local function charge(hits)
  local l = limits[1]
  l.counts = true
  if l.most then l.most = 2 * l.burst end
  set(hits, 1, 1, 0)
  return take()
end

-- write_ended writes an ended reservation without changing the time when it is forgotten.
local function write_ended(kept, due, forgets)
  redis.call('HSET', reserve.hash, reserve.name, struct.pack('<ddd', kept, due, forgets))
end

-- lookup returns nil if no reservation has the name. For an open one, it returns 'open', its hits and the time when they were consumed.
-- For an ended one, it returns 'ended', the hits that stay consumed, the number of settlements that are still charged, and the time when
-- it is forgotten. It first ends the reservation if that has expired.
local function lookup()
  local text = redis.call('HMGET', reserve.hash, reserve.name)[1]
  if not text then return nil end
  if reserve.ended and #text == 24 then
    local kept, due, forgets = struct.unpack('<ddd', text)
    if integer(kept, MAX) and integer(due, MAX) and integer(forgets, MAX) and forgets > now then return 'ended', kept, due, forgets end
    redis.call('ZREM', reserve.ended, reserve.name)
    redis.call('HDEL', reserve.hash, reserve.name)
    forget_if_empty()
    return nil
  end
  local expires = tonumber(redis.call('ZSCORE', reserve.set, reserve.name) or nil)
  if not expires then return nil end
  local hits, at = record(text)
  if expires > now then return 'open', hits, at end
  local kept = finish(reserve.name, hits, at)
  remove({reserve.name}, hits, reserve.ended)
  if reserve.ended then return 'ended', kept, 1, now + reserve.ttl end
end

-- again decides a take, or a peek unless write is set, if its name is known; otherwise it returns nil. It returns the same values as
-- settle.
local function again(write)
  local state, hits, at, forgets = lookup()
  if not state then return nil end
  local open, given, window = state == 'open', 0, nil
  if open and write then
    given = hits
    refund(hits, at)
    if family[1].windows then window = at end
  end
  set(1, 1, 1, 3)
  local d = take()
  if open and write then
    remember(reserve.name, 0, 1 + d[1])
    remove({reserve.name}, hits, true)
  elseif write and d[1] > 0 then
    write_ended(hits, at + 1, forgets)
  end
  d[5] = window or d[5]
  return d, open and 3 or 5, given, 0
end

-- settle ends the named reservation, given its true cost. It returns a decision, the outcome, and the hits refunded and charged.
local function settle(cost)
  local state, hits, at, forgets = lookup()
  local outcome, given, charged, window = 4, 0, 0, nil
  if state == 'open' then
    outcome, given, charged = 3, math.max(0, hits - cost), math.max(0, cost - hits)
    if given > 0 then
      refund(given, at)
      if family[1].windows then window = at end
    elseif charged > 0 then
      charge(charged)
    end
    if cost > 0 then remember(reserve.name, 0, 0) end
    remove({reserve.name}, hits, reserve.ended and cost > 0)
  elseif state == 'ended' then
    if cost > 0 and at > 0 then
      outcome, charged = 6, math.max(0, cost - hits)
      write_ended(0, at - 1, forgets)
      if charged > 0 then charge(charged) end
    end
  elseif reserve.ended and cost > 0 then
    return charge(cost), 7, 0, 0
  end
  set(0, 0, 0, 4)
  local d = give()
  d[5] = window or d[5]
  return d, outcome, given, charged
end

local function decide_reserving()
  local cost, count, want, mode = a.cost, a.count, a.want, a.mode
  if mode == 5 or mode == 6 then
    forget_reserved()
    local d = reset()
    for field = 10, 14 do d[field] = 0 end
    return d
  end
  local expired = begin()
  local d, outcome, given, charged = nil, 0, 0, 0
  if mode == 7 then
    d, outcome, given, charged = settle(cost)
  elseif mode < 4 and reserve.ended and reserve.named == 1 then
    d, outcome, given, charged = again(mode < 2)
  end
  if not d then
    outcome, given, charged = 0, 0, 0
    set(cost, count, want, mode)
    if mode == 4 then
      d = give()
    else
      a.listed = reserve.named == 1 and mode < 2 -- so that rejected hits do not count
      d = take()
      if a.listed and mode == 0 and d[1] > 0 then
        outcome = add(cost, family[1].windows and d[5] or now)
        if outcome == 2 then remember(reserve.name, cost, 1) end
      end
    end
  end
  d[10], d[11], d[12], d[13], d[14] = reserve.sum, expired, outcome, given, charged
  return d
end
