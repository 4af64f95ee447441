
-- Limits with a penalty, whose gate rejects requests while the penalty runs. Mirrors pkg/engine/penalty.go.
--
-- state  packed: at: end of the penalty; n: its length; expires: time from which the state is irrelevant
-- penalty  lasts: length of the first one; max: maximum length; escalate: factor between lengths; reached: 1 if an admitted
--          take that leaves nothing starts it, 0 if a rejection does
local penalty, gate

local function read_gate()
  gate = {key = penalty.key, at = 0, n = 0, expires = 0}
  local state = redis.call('GET', gate.key)
  if state and #state == 24 then
    local at, n, expires = struct.unpack('<ddd', state)
    if integer(at, MAX) and integer(n, 281474976710656) and expires >= at and integer(expires, at + 281474976710656) then
      gate.at, gate.n, gate.expires = at, n, expires
    end
  end
end

local function write_gate()
  redis.call('SET', gate.key, struct.pack('<ddd', gate.at, gate.n, gate.expires), 'PX', ttl(gate.expires))
end

-- left returns the remaining time of the penalty, or 0 if none is running. If that exceeds its length, the state is from the future, and
-- the penalty counts as if it began now. A check does not move it.
local function left()
  if now >= gate.expires then return 0 end
  if gate.at - now > gate.n then
    gate.expires, gate.at = gate.expires - (gate.at - now - gate.n), now + gate.n
    if a.mode == 0 or a.mode > 3 then write_gate() end
  end
  return math.max(0, gate.at - now)
end

-- reject turns a counter's decision into a rejection by the penalty. Nothing is left while it runs.
local function reject(d, runs)
  d[1], d[2], d[6], d[7] = 0, 0, 0, 0
  d[4], d[9] = math.max(d[4], runs), runs
  return d
end

-- ask takes count requests or, unless write is set, peeks at the result.
local function ask(write, count)
  a.write, a.starts, a.count, a.want = write, write, count, count
  a.most = MAX
  return take()
end

-- first returns the number of count requests that reach the counter: all up to the one that starts the penalty.
local function first(count)
  if count <= 1 then return count end
  local admitted = ask(false, count)[1]
  if penalty.reached == 0 then return math.min(count, admitted + 1) end
  local last = math.max(1, math.ceil(ask(false, 1)[2] / a.cost)) -- the first that leaves nothing
  if last > admitted or last > 1 and a.owner ~= '' then return count end
  return last
end

-- starts reports whether d, the decision on count requests, starts a penalty.
local function starts(d, count)
  local admitted = d[1]
  if penalty.reached == 0 then return admitted < count end
  if a.owner ~= '' then admitted = math.min(admitted, 1) end
  return admitted > 0 and admitted * a.cost >= d[2]
end

local function start()
  local n, max = penalty.lasts, penalty.max
  if penalty.escalate > 1 and now < gate.expires then
    n = gate.n * penalty.escalate
    n = n < max and math.max(penalty.lasts, n) or max
  end
  gate.at, gate.n, gate.expires = now + n, n, now + n
  if penalty.escalate > 1 then gate.expires = gate.expires + max end
  write_gate()
  return n
end

local function take_gated()
  local count, runs = a.count, left()
  if runs > 0 then
    return reject(ask(false, math.min(count, 1)), runs)
  end
  local part = first(count)
  local d = ask(true, part)
  if not starts(d, part) then return d end
  d[9] = start()
  if d[1] < count then d[4] = math.max(d[4], d[9]) end
  if d[1] == part and part < count then -- the rest reaches the gate, but not the counter
    d[4] = math.max(d[4], ask(false, 1)[4])
  end
  return d
end

-- reset_gated resets the limits and the penalty. During a penalty, it does nothing unless forced.
local function reset_gated()
  local runs = left()
  if a.mode == 5 and runs > 0 then return reject(give(), runs) end
  redis.call('UNLINK', gate.key)
  return reset()
end

local function decide_gated()
  read_gate()
  if a.mode == 0 then return take_gated() end
  if a.mode > 4 then return reset_gated() end
  local runs = left()
  local d
  if a.mode == 4 then
    d = give()
    d[9] = runs
  else
    a.starts = a.starts and runs == 0
    d = take()
    if runs > 0 then reject(d, runs) end
  end
  return d
end

-- decide decides the operation that was read, and returns the decision.
local function decide()
  if penalty then return decide_gated() end
  if reserve then return decide_reserving() end
  if a.mode < 4 then return take() end
  if a.mode == 4 then return give() end
  return reset()
end

-- read reads the operation at pos, whose first key is KEYS[k], and returns the index of the first key after it. An operation consists of
-- cost, count, want; as bytes, mode, the number of limits, 1 with a penalty, 2 with reservations or 3 if their names may repeat, and 1
-- with an owner; the penalty, or the values described in reserve.lua, if any; for each limit, a byte for its family and the limit, as
-- described in the family's file; and 16 bytes that identify the owner, if any.
local function read(k)
  local cost, count, want, mode, n, gated, owned, kind
  cost, count, want, mode, n, gated, owned, pos = struct.unpack('<dddBBBB', asked, pos)
  set(cost, count, want, mode)
  penalty, reserve, limits, family = nil, nil, {}, {}
  if gated == 1 then
    penalty = {key = KEYS[k + n]}
    penalty.lasts, penalty.max, penalty.escalate, penalty.reached, pos = struct.unpack('<dddB', asked, pos)
  elseif gated > 1 then
    reserve = {hash = KEYS[k + n], set = KEYS[k + n + 1], ended = gated == 3 and KEYS[k + n + 2] or nil}
    reserve.ttl, reserve.keeps, reserve.back, reserve.named, reserve.name, pos = struct.unpack('<ddBBc12', asked, pos)
  end
  for i = 1, n do
    kind, pos = struct.unpack('B', asked, pos)
    family[i] = family_of(kind)
    limits[i] = family[i].limit(KEYS[k + i - 1], struct.unpack(family[i].format, asked, pos))
    pos = pos + struct.size(family[i].format)
  end
  a.listed = n > 1
  if owned == 1 then
    a.owner = string.sub(asked, pos, pos + 15)
    pos = pos + 16
  end
  return k + n + gated
end

-- decide_one decides a take of one limit, given its family and its values.
local function decide_one(cost, count, key, kind, ...)
  set(cost, count, count, 0)
  penalty, reserve, family = nil, nil, {family_of(kind)}
  limits = {family[1].limit(key, ...)}
  return decide()
end

return read, decide, decide_one
end
