
-- Token buckets and leaky buckets. Mirrors pkg/engine/bucket.go, tokenbucket.go and leakybucket.go.
--
-- state  packed: at, num, den: the bucket is full, or the queue empty, at at + num/den µs; expires: from when on it is
--        irrelevant; kept: until when Redis keeps it
-- limit  us, den: den hits take us µs; den is 0 if the limit is 0
--        burst: tokens, or places in the queue; depth: how far in the future that time may be, in hits; debt; initial;
--        step: its fill_interval; window; flags: leaky, counts (refused hits)
--
-- A duration is two numbers: µs, and a numerator over den.
families[1] = function()
  local function limit(key, us, den, burst, depth, debt, initial, step, window, leaky, counts)
    return {
      key = key, us = us, den = den, burst = burst, depth = depth, debt = debt, initial = initial, step = step,
      window = window, leaky = leaky == 1, counts = counts == 1,
    }
  end

  -- of returns how long it takes for hits to come, or to leave the queue.
  local function of(l, hits)
    if l.den == 1 then return hits * l.us, 0 end
    return muldiv(hits, l.us, l.den)
  end

  -- hits_of returns how many whole hits fit into a duration, and whether there is a remainder.
  local function hits_of(l, t, num)
    local quo, rem = muldiv(t, l.den, l.us)
    rem = rem + num
    local more = math.floor(rem / l.us)
    return quo + more, rem > more * l.us
  end

  local function add(l, t, num, u, unum)
    t, num = t + u, num + unum
    if num >= l.den then return t + 1, num - l.den end
    return t, num
  end

  local function less(t, num, u, unum) return t < u or t == u and num < unum end

  -- sub returns t − u, at least 0.
  local function sub(l, t, num, u, unum)
    if less(t, num, u, unum) then return 0, 0 end
    if num < unum then return t - u - 1, num + l.den - unum end
    return t - u, num - unum
  end

  -- up returns a duration in whole µs, rounded up.
  local function up(t, num)
    if num > 0 then return t + 1 end
    return t
  end

  -- step_up returns the first time, from t on, at which tokens come.
  local function step_up(l, t)
    local over = l.step > 0 and t % l.step or 0
    if over > 0 then return t + l.step - over end
    return t
  end

  -- full returns when the bucket is full, or the queue empty.
  local function full(l, v) return step_up(l, v.base + up(v.wait, v.num)) end

  -- longest returns the longest wait that is possible in a state that is not from the future. For a queue it is less than
  -- burst + 1 hits take.
  local function longest(l)
    local t, num = of(l, l.depth)
    if not l.leaky then return t, num end
    if l.den == 1 then return sub(l, t, num, 1, 0) end
    return sub(l, t, num, 0, 1)
  end

  -- The wait from view.base until full is wait + num/den µs, which corresponds to used hits and, if part is true, to a
  -- fraction of one more.
  local function view(l)
    local v = {base = now, wait = 0, num = 0, used = 0, part = false, seen = false, moved = false, kept = 0}
    if l.den == 0 then return v end
    if l.step > 0 then v.base = now - now % l.step end
    local state = redis.call('GET', l.key)
    local at, num, den, expires
    if state then
      at, num, den, expires, v.kept = struct.unpack('<ddddd', state)
      v.seen = now < expires
    end
    if not v.seen then
      v.used = math.max(0, l.burst - l.initial)
      v.wait, v.num = of(l, v.used)
      return v
    end
    if at < v.base then return v end
    v.wait, v.num = at - v.base, num
    if den ~= l.den and num > 0 then v.wait, v.num = v.wait + 1, 0 end
    v.used, v.part = hits_of(l, v.wait, v.num)
    if v.used > l.depth or v.used == l.depth and (v.part or l.leaky) then
      v.wait, v.num = longest(l)
      v.moved = true
      v.used, v.part = hits_of(l, v.wait, v.num)
    end
    return v
  end

  -- write makes Redis keep the state for longer than needed, up to twice as long or ten seconds, so that most writes need
  -- not set an expiry.
  local function write(l, v)
    local expires = math.max(full(l, v), now)
    if l.initial < l.burst then expires = expires + l.window end
    local keep = expires <= v.kept
    if not keep then v.kept = expires + math.max(expires - now, math.min(l.window, 10000000)) end
    local state = struct.pack('<ddddd', v.base + v.wait, v.num, l.den, expires, v.kept)
    if keep then
      redis.call('SET', l.key, state, 'KEEPTTL')
    else
      redis.call('SET', l.key, state, 'PX', ttl(v.kept))
    end
  end

  -- balance returns the tokens in the bucket, rounded down and rounded up.
  local function balance(l, v)
    local up = l.burst - v.used
    if v.part then return up - 1, up end
    return up, up
  end

  -- left returns the number of tokens, or of free places. A place that is partly free accepts a hit.
  local function left(l, v)
    local down, up = balance(l, v)
    return math.max(0, l.leaky and up or down)
  end

  local function room(l, v)
    if l.den == 0 then return 0 end
    if l.leaky or l.debt == 0 then return fit(left(l, v)) end
    local down, up = balance(l, v)
    up = math.max(0, up)
    if a.probe then return fit(up) end
    return math.min(math.floor((up + a.cost - 1) / a.cost), fit(down + l.debt))
  end

  -- spend takes hits out of the bucket, or puts them into the queue. Only refused hits that count can exceed the depth.
  local function spend(l, v, hits)
    local t, num = of(l, l.depth)
    if hits < l.depth then v.wait, v.num = add(l, v.wait, v.num, of(l, hits)) end
    if hits >= l.depth or less(t, num, v.wait, v.num) then v.wait, v.num = t, num end
  end

  -- retry_tokens returns when cost would be admitted or, if it never would, when the bucket is full.
  local function retry_tokens(l, v)
    if a.cost > l.burst + l.debt then return full(l, v) end
    local at = v.base
    if l.debt > 0 then -- the balance has to rise above 0
      local t, num = of(l, l.burst)
      if not less(v.wait, v.num, t, num) then at = at + sub(l, v.wait, v.num, t, num) + 1 end
    end
    return step_up(l, math.max(at, v.base + up(sub(l, v.wait, v.num, of(l, l.burst + l.debt - a.cost)))))
  end

  -- retry_turn returns when the queue has room for cost or, if it never has, when it is empty.
  local function retry_turn(l, v)
    if a.cost > l.burst then return full(l, v) end
    local t, num = of(l, l.burst - a.cost + 1)
    if less(v.wait, v.num, t, num) then return v.base end
    return v.base + sub(l, v.wait, v.num, t, num) + 1
  end

  local function take(l, v)
    if l.den == 0 then return {0, 0, 0, 0, 0, 0, 0, 0, 0}, true end
    local left, turn = left(l, v), up(v.wait, v.num)
    local admitted, refuses = judge(room(l, v))
    if not l.leaky or admitted == 0 then turn = 0 end
    local spent = spends(admitted, l.counts)
    if spent > 0 then spend(l, v, spent) end
    if spent > 0 or v.moved or not v.seen and l.initial < l.burst then write(l, v) end
    local retry = now
    if refuses then retry = l.leaky and retry_turn(l, v) or retry_tokens(l, v) end
    return {admitted, left, math.max(0, full(l, v) - now), math.max(0, retry - now), 0, turn, 0, 0, 0}, refuses
  end

  -- give makes the bucket full earlier, by the time that the hits take, but not before now. A queue takes nothing back,
  -- because turns have been promised.
  local function give(l, v)
    if l.den == 0 then return {0, 0, 0, 0, 0, 0, 0, 0, 0} end
    if l.leaky then
      if v.moved then write(l, v) end
    elseif v.seen and (v.wait > 0 or v.num > 0) then
      if a.cost > v.used then
        v.wait, v.num, v.used, v.part = 0, 0, 0, false
      else
        v.wait, v.num = sub(l, v.wait, v.num, of(l, a.cost))
        v.used = v.used - a.cost
      end
      write(l, v)
    end
    return {0, left(l, v), math.max(0, full(l, v) - now), 0, 0, 0, 0, 0, 0}
  end

  return {format = '<ddddddddBB', limit = limit, view = view, room = room, take = take, give = give}
end
