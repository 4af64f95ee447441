
-- Token buckets and leaky buckets. Mirrors pkg/engine/bucket.go, tokenbucket.go and leakybucket.go.
--
-- state  packed: at, n, part, unit: n + part/unit hits are consumed, or queued, as of at; −unit if turns of a queue were
--        promised at different rates; full: time when they will have come back, or the last turn is over; kept: time until
--        which Redis keeps the state; and for a bucket that does not start full, expires: time until which it is not new
-- limit  us, den: den hits take us µs; den is 0 if the limit is 0
--        burst: tokens, or places in the queue; most: maximum of consumed hits; debt; initial; step: its fill_interval;
--        window; flags: leaky, counts (rejected hits)
--
-- An amount is two numbers: hits, and a numerator over us.
families[1] = function()
  local function limit(key, us, den, burst, most, debt, initial, step, window, leaky, counts)
    local hits = den > 0 and burst + debt or 0 -- the largest cost that can be admitted
    return {
      key = key, hits = hits, us = us, den = den, burst = burst, most = most, debt = debt, initial = initial, step = step,
      window = window, leaky = leaky == 1, counts = counts == 1,
    }
  end

  -- sub returns n + part/us less m + qart/us, at least 0.
  local function sub(l, n, part, m, qart)
    if n < m or n == m and part <= qart then return 0, 0 end
    if part < qart then return n - m - 1, part + l.us - qart end
    return n - m, part - qart
  end

  -- span returns the time that an amount takes to come back in whole µs, rounded down, and whether there is a remainder. Spans above 2^53
  -- µs, which only an amount consumed under a larger limit can reach, are only compared.
  local function span(l, n, part)
    local us, rest = muldiv(n, l.us, l.den)
    rest = rest + part
    local over = math.floor(rest / l.den)
    return us + over, rest > over * l.den
  end

  -- up returns the time that an amount takes to come back in whole µs, rounded up.
  local function up(l, n, part)
    local us, more = span(l, n, part)
    if more then return us + 1 end
    return us
  end

  -- step_up returns the first time from t on at which tokens arrive.
  local function step_up(l, t)
    local over = l.step > 0 and t % l.step or 0
    if over > 0 then return t + l.step - over end
    return t
  end

  -- at_most returns the earlier of t and the time at which the bucket is full for the limit that wrote the state.
  local function at_most(v, t)
    if v.seen then return math.min(t, v.stop) end
    return t
  end

  -- back returns the time at which an amount of the consumed hits has come back.
  local function back(l, v, n, part)
    if n == 0 and part == 0 then return now end
    return step_up(l, v.as + up(l, n, part))
  end

  -- full returns the time at which the bucket is full or the queue empty.
  local function full(l, v) return v.mixed and v.stop or at_most(v, back(l, v, v.n, v.part)) end

  -- below returns the time at which fewer than the given hits are consumed or queued.
  local function below(l, v, hits)
    if v.n < hits then return now end
    local us = span(l, sub(l, v.n, v.part, hits, 0))
    return step_up(l, v.as + us + 1)
  end

  -- gone returns the hits that have left a queue after part of a span in which all of them leave evenly. A queue longer than 2^48 µs
  -- counts as not moving, because muldiv ends there.
  local function gone(l, hits, part, all)
    if all > 281474976710656 then return 0, 0 end
    local n, rest = muldiv(hits, part, all)
    local parts = muldiv(rest, l.us, all)
    return n, parts
  end

  -- read sets the view from a state that is still relevant.
  local function read(l, v, at, n, part, unit)
    if at > now then v.wrote = {n, part, unit, v.expires - (at - now)} end
    local many = unit < 0
    unit = math.abs(unit)
    if unit ~= l.us and part > 0 then -- convert to a fraction over us, rounded up
      local rest
      part, rest = muldiv(part, l.us, unit)
      if rest > 0 then part = part + 1 end
      if part == l.us then n, part = n + 1, 0 end
    end
    if at > now then
      v.moved, v.as, v.stop = true, now, v.stop - (at - now)
    elseif now >= v.stop then -- full for the limit that wrote it; this one may still need to know that it is not new
      n, part = 0, 0
    elseif l.leaky and (many or v.stop - at ~= up(l, n, part)) then
      n, part = sub(l, n, part, gone(l, n, now - at, v.stop - at))
    else -- in each period, hits come back at the rate of the limit that reads the state next
      v.as = math.max(v.as, at)
      n, part = sub(l, n, part, muldiv(v.as - at, l.den, l.us))
    end
    v.mixed = l.leaky and (many or v.stop - now ~= up(l, n, part))
    v.n, v.part = n, part
  end

  -- sound reports whether a script can have written these numbers.
  local function sound(at, n, part, unit, stop, kept, expires)
    return integer(at, MAX) and integer(n, MAX) and unit >= 1 and integer(unit, 281474976710656) and integer(part, unit - 1)
      and stop >= at and integer(stop, MAX) and expires >= stop and integer(expires, MAX) and integer(kept, 2 * MAX)
  end

  -- In the view, n + part/us hits are consumed, or queued, for this limit. Hits have come back up to view.as: now, or the last step
  -- before it. mixed is true if turns of a queue were promised at different rates, or at another than this one; the last turn ends at
  -- view.stop.
  local function view(l)
    local v = {as = now, n = 0, part = 0, stop = 0, seen = false, moved = false, mixed = false, kept = 0}
    if l.den == 0 then return v end
    if l.step > 0 then v.as = now - now % l.step end
    local state = redis.call('GET', l.key)
    if state and (#state == 48 or #state == 56) then
      local at, n, part, unit, stop, kept = struct.unpack('<dddddd', state)
      local expires = #state > 48 and struct.unpack('<d', state, 49) or stop
      if sound(at, n, part, math.abs(unit), stop, kept, expires) then
        v.stop, v.kept, v.expires = stop, kept, expires
        v.seen = now < expires and at < expires -- otherwise a refund left nothing to remember
        if v.seen then
          read(l, v, at, n, part, unit)
          return v
        end
      end
    end
    v.n = l.burst - l.initial
    return v
  end

  -- keep writes n + part/unit as of view.as. Redis keeps the state beyond its expiry, for up to twice as long or ten seconds, plus the
  -- slack, so most writes need not set an expiry.
  local function keep(l, v, n, part, unit, expires)
    local keep = expires <= v.kept
    if not keep then v.kept = expires + math.max(expires - now, math.min(l.window, 10000000)) + slack * 1000 end
    local state = struct.pack('<dddddd', v.as, n, part, unit, v.stop, v.kept)
    if expires > v.stop then state = state .. struct.pack('<d', expires) end
    if keep then
      redis.call('SET', l.key, state, 'KEEPTTL')
    else
      redis.call('SET', l.key, state, 'PX', ttl(v.kept - slack * 1000))
    end
    v.seen = true
  end

  -- write writes the view after hits were consumed or refunded. A bucket that does not start full is kept until it has been full for a
  -- window.
  local function write(l, v)
    local expires = v.stop
    if l.initial < l.burst then expires = expires + l.window end
    keep(l, v, v.n, v.part, v.mixed and -l.us or l.us, expires)
  end

  -- balance returns the tokens in the bucket, rounded down and up.
  local function balance(l, v)
    local up = l.burst - v.n
    if v.part > 0 then return up - 1, up end
    return up, up
  end

  -- left returns the number of tokens or of free places. A partly free place accepts a hit.
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
    return math.min(math.floor((up + a.cost - 1) / a.cost), fit(math.max(0, down + l.debt)))
  end

  -- spend takes hits out of the bucket, or adds them to the queue, and reports whether it took any. Only rejected hits that count can
  -- exceed the available ones.
  local function spend(l, v, admitted)
    local hits = spends(admitted, l.counts)
    if hits == 0 or not l.leaky and v.n >= l.most then return false end
    v.n = v.n + (l.leaky and hits or math.min(hits, l.most))
    if not l.leaky and v.n >= l.most then v.n, v.part = l.most, 0 end
    if v.mixed then -- after turns promised at other rates
      v.stop = math.min(v.stop + admitted * up(l, a.cost, 0), MAX)
    else
      v.stop = back(l, v, v.n, v.part)
    end
    return true
  end

  -- retry_tokens returns the time at which cost would be admitted.
  local function retry_tokens(l, v)
    local at = back(l, v, sub(l, v.n, v.part, l.burst + l.debt - a.cost, 0))
    if l.debt > 0 then at = math.max(at, below(l, v, l.burst)) end -- the balance must rise above 0
    return at_most(v, at)
  end

  -- retry_turn returns the time at which the queue has room for cost.
  local function retry_turn(l, v)
    if v.mixed then return full(l, v) end
    return at_most(v, below(l, v, l.burst - a.cost + 1))
  end

  local function take(l, v)
    if l.den == 0 then return {0, 0, 0, 0, 0, 0, 0, 0, 0}, true end
    local left, turn = left(l, v), 0
    local admitted, rejects = judge(room(l, v))
    if l.leaky and admitted > 0 then turn = full(l, v) - now end
    if spend(l, v, admitted) then
      write(l, v)
    elseif a.write and v.moved then -- keep the amount as the other limit wrote it
      keep(l, v, unpack(v.wrote))
    elseif a.starts and not v.seen and l.initial < l.burst then
      v.stop = back(l, v, v.n, v.part)
      write(l, v)
    end
    local retry = now
    if rejects and a.cost <= l.hits then retry = l.leaky and retry_turn(l, v) or retry_tokens(l, v) end
    return {admitted, left, math.max(0, full(l, v) - now), math.max(0, retry - now), 0, turn, 0, 0, 0}, rejects
  end

  -- give puts hits back until the bucket is full. A bucket that does not start full then begins to fill. A queue refunds nothing, because
  -- turns have been promised.
  local function give(l, v)
    if l.den == 0 then return {0, 0, 0, 0, 0, 0, 0, 0, 0} end
    if not l.leaky and a.cost > 0 and (v.n > 0 or v.part > 0) then
      v.n, v.part = sub(l, v.n, v.part, a.cost, 0)
      v.stop = full(l, v)
      write(l, v)
    end
    return {0, left(l, v), math.max(0, full(l, v) - now), 0, 0, 0, 0, 0, 0}
  end

  -- hold keeps the reserved hits from coming back before the given time.
  local function hold(l, reserved, ended)
    if l.leaky or l.den == 0 then return end
    local v = view(l)
    local since = math.max(0, v.as - (l.step > 0 and ended - ended % l.step or ended))
    local n, part = sub(l, math.min(reserved, l.burst), 0, muldiv(since, l.den, l.us))
    if n < v.n or n == v.n and part <= v.part then return end
    v.n, v.part = n, part
    v.stop = back(l, v, v.n, v.part)
    write(l, v)
  end

  return {format = '<ddddddddBB', limit = limit, view = view, room = room, take = take, give = give, hold = hold}
end
