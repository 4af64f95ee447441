
-- Sliding windows and logs. Mirrors pkg/engine/runs.go and slidingwindow.go.
--
-- state  a list of runs, oldest first. Each is packed: at: its tick; n: its hits; sum: its hits and those of all runs that
--        ever preceded it; gone: time when its hits stop counting for all limits that took from the state; and in a log,
--        most: the hits of the largest of these limits. The list contains the last sum minus the first sum plus the first
--        n hits, so only both ends of the list have to be read.
-- limit  hits, window, precision (0 for a log), flag: counts (rejected hits)
families[2] = function()
  -- The maximum of a sum, and the maximum number of runs in a loop, which exceeds that of any state.
  local MOST, WALK = 4503599627370496, 30000

  -- limit.span is the number of ticks that count, including the current one; limit.size is the size of a run in bytes; and limit.sum,
  -- after view, is the last sum, the maximum of all.
  local function limit(key, hits, window, precision, counts)
    local span = precision == 0 and window or precision + 1
    return {
      key = key, hits = hits, window = window, precision = precision, span = span, counts = counts == 1,
      size = precision == 0 and 40 or 32, sum = 0,
    }
  end

  local function str(n) return n == 0 and '0' or string.format('%.0f', n) end

  -- run returns at, n, sum of the i-th run, or 0 each if there is none or no script wrote it.
  local function run(l, i)
    local state = redis.call('LINDEX', l.key, str(i))
    if not state or #state ~= l.size then return 0, 0, 0 end
    local at, n, sum = struct.unpack('<ddd', state)
    if at % 1 == 0 and at >= 0 and at <= MAX and n % 1 == 0 and n > 0 and n <= sum and sum % 1 == 0 and sum <= l.sum then
      return at, n, sum
    end
    return 0, 0, 0
  end

  -- tick_at returns the tick that contains a time. It counts whole windows separately, so the remainder rarely needs muldiv's slow path.
  local function tick_at(l, t)
    if l.precision == 0 then return t end
    local over = t % l.window
    return (t - over) / l.window * l.precision + muldiv(over, l.precision, l.window)
  end

  -- gone returns the time from which the hits of a tick no longer count.
  local function gone(l, at)
    if l.precision == 0 then return at + l.window end
    at = at + l.span
    local over = at % l.precision
    local quo, rem = muldiv(over, l.window, l.precision)
    if rem > 0 then quo = quo + 1 end
    return (at - over) / l.precision * l.window + quo
  end

  -- find returns the index of the first run from low on for which is(at, n, sum) is true, or of the last run. If is is true for a run, it
  -- must be true for all later ones. The search begins near low, where the result usually is.
  local function find(l, low, is)
    local high, stride, last = low, 1, nil
    while not is(run(l, high)) do
      last = last or redis.call('LLEN', l.key) - 1
      if high >= last then return last end
      low, high, stride = high + 1, math.min(high + stride, last), stride * 2
    end
    while low < high do
      local middle = math.floor((low + high) / 2)
      if is(run(l, middle)) then high = middle else low = middle + 1 end
    end
    return low
  end

  -- last_run sets the view from the newest run, and reports whether a script can have written it.
  local function last_run(l, v, state)
    if #state ~= l.size then return false end
    local at, n, sum, gone = struct.unpack('<dddd', state)
    if at % 1 ~= 0 or at < 0 or at > MAX or n % 1 ~= 0 or n < 1 or n > sum or sum % 1 ~= 0 or sum > MOST or gone % 1 ~= 0 then
      return false
    end
    if l.precision == 0 then
      local longest, most = gone - at, struct.unpack('<d', state, 33)
      if longest < 1 or longest > 281474976710656 or not integer(most, 10000) then return false end
      v.longest, v.most = longest, most
    end
    v.at, v.n, v.sum, v.gone, l.sum = at, n, sum, gone, sum
    return true
  end

  -- The runs from view.first on count. They have view.used hits in total, at least one each, and their sums start at view.before;
  -- view.base is the start of the list's sums. at, n, sum and gone are those of the newest run, whether it counts or not; any is true if
  -- there is one. In a log, longest and most are the longest window and the largest number of hits of the limits that took from it.
  local function view(l)
    local v = {
      tick = tick_at(l, now), any = false, first = 0, used = 0, before = 0, base = 0,
      at = -1, n = 0, sum = 0, gone = 0, longest = l.window, most = l.hits,
    }
    local newest = redis.call('LINDEX', l.key, '-1')
    if not newest then return v end
    if not last_run(l, v, newest) then
      forget(l.key)
      return v
    end
    v.any, v.before = true, v.sum
    if now >= v.gone then return v end
    local at, n, sum = run(l, 0)
    v.base = sum - n
    if v.tick - v.at >= l.span then return v end
    if v.tick - at >= l.span then
      v.first = find(l, 1, function(t) return v.tick - t < l.span end)
      at, n, sum = run(l, v.first)
    end
    v.before = sum - n
    v.used = v.sum - v.before
    return v
  end

  -- write_last writes the newest run. It replaces the last one of the list if over is set; otherwise it is appended.
  local function write_last(l, v, over)
    local ends, packed
    if l.precision == 0 then
      ends = v.at + v.longest
      packed = struct.pack('<ddddd', v.at, v.n, v.sum, ends, v.most)
    else
      ends = gone(l, v.at)
      packed = struct.pack('<dddd', v.at, v.n, v.sum, ends)
    end
    if over then redis.call('LSET', l.key, '-1', packed) else redis.call('RPUSH', l.key, packed) end
    if not over or ends ~= v.gone then redis.call('PEXPIRE', l.key, ttl(ends)) end
    v.any, v.gone, l.sum = true, ends, math.max(l.sum, v.sum)
  end

  -- cut drops the first n runs.
  local function cut(l, v, n)
    if n == 0 then return end
    redis.call('LTRIM', l.key, str(n), '-1')
    local _, hits, sum = run(l, 0)
    v.base = sum - hits
    if n > v.first and v.used > 0 then
      v.before = v.base
      v.used = v.sum - v.before
    end
    v.first = math.max(0, v.first - n)
  end

  -- trim drops runs of a log that precede the last 2·most hits, because a count is at most twice the limit.
  local function trim(l, v)
    local enough = v.sum - 2 * v.most
    if l.precision > 0 or v.base >= enough then return end
    cut(l, v, find(l, 0, function(_, _, sum) return sum > enough end))
  end

  -- age drops runs that no longer count for any limit.
  local function age(l, v)
    local span = l.span
    if l.precision == 0 then span = math.max(span, v.longest) end
    if span == l.span and v.used > 0 then
      cut(l, v, v.first)
    elseif v.tick - run(l, 0) >= span then
      cut(l, v, find(l, 1, function(at) return v.tick - at < span end))
    end
  end

  -- arrive moves runs from the future to now.
  local function arrive(l, v)
    local past, sum, _ = find(l, 0, function(at) return at > v.tick end), v.base, nil
    if past > 0 and run(l, past - 1) == v.tick then past = past - 1 end
    if past > 0 then
      _, _, sum = run(l, past - 1)
      redis.call('LTRIM', l.key, '0', str(past - 1))
    else
      redis.call('UNLINK', l.key)
    end
    v.at, v.n = v.tick, v.sum - sum
    write_last(l, v, false)
  end

  -- settle drops runs that no longer count for any limit, moves runs from the future to now, and keeps the others as long as this limit
  -- needs them.
  local function settle(l, v)
    if not v.any then return end
    if now >= v.gone then
      redis.call('UNLINK', l.key)
      v.any, v.at, v.n, v.sum, v.before, v.base = false, -1, 0, 0, 0, 0
      v.longest, v.most = l.window, l.hits
      return
    end
    age(l, v)
    local wider = l.precision == 0 and (l.window > v.longest or l.hits > v.most)
    v.longest, v.most = math.max(v.longest, l.window), math.max(v.most, l.hits)
    if v.at > v.tick then
      arrive(l, v)
    elseif wider then
      write_last(l, v, true)
    end
    trim(l, v)
  end

  -- start_over replaces the runs that count by one, as if all hits had been consumed now, to keep sums exact.
  local function start_over(l, v)
    redis.call('UNLINK', l.key)
    v.at, v.n, v.sum, v.before, v.base, v.first, v.any, l.sum = v.tick, v.used, v.used, 0, 0, 0, false, MOST
    if v.used > 0 then write_last(l, v, false) end
  end

  local function left(l, v) return math.max(0, l.hits - v.used) end

  local function room(l, v) return fit(left(l, v)) end

  -- reset_in returns the time until no hit counts.
  local function reset_in(l, v)
    if v.used == 0 then return 0 end
    return math.max(0, gone(l, math.min(v.at, v.tick)) - now)
  end

  -- free returns the time until the oldest n hits no longer count.
  local function free(l, v, n)
    if n <= 0 then return 0 end
    local i = find(l, v.first, function(_, _, sum) return sum - v.before >= n end)
    return math.max(0, gone(l, math.min(run(l, i), v.tick)) - now)
  end

  local function take(l, v)
    if a.write then settle(l, v) end
    local left = left(l, v)
    local admitted, rejects = judge(fit(left))
    local spent = math.min(spends(admitted, l.counts), math.max(0, 2 * l.hits - v.used)) -- a count is at most twice the limit
    if spent > 0 and v.sum + spent > MOST then start_over(l, v) end
    if spent > 0 then
      local over = v.any and v.at == v.tick
      v.used, v.at, v.n, v.sum = v.used + spent, v.tick, (over and v.n or 0) + spent, v.sum + spent
      write_last(l, v, over)
      trim(l, v)
    end
    local reset, retry = reset_in(l, v), 0
    if rejects and a.cost <= l.hits then retry = free(l, v, v.used + a.cost - l.hits) end
    return {admitted, left, reset, retry, 0, 0, 0, 0, 0}, rejects
  end

  -- remove removes hits, starting with the i-th run; before is the sum before that run.
  local function remove(l, v, i, before, hits)
    if hits == v.sum - v.base or redis.call('LLEN', l.key) > WALK then
      redis.call('UNLINK', l.key)
      return
    end
    local low = find(l, i, function(_, _, sum) return sum - before > hits end)
    if i > 0 then -- earlier runs stay, so all later sums change
      local some = hits < v.sum - before
      local rest = redis.call('LRANGE', l.key, str(some and low or i), '-1')
      redis.call('LTRIM', l.key, '0', str(i - 1))
      for k = 1, some and #rest or 0 do
        local at, n, sum = 0, 0, 0
        if #rest[k] == l.size then at, n, sum = struct.unpack('<ddd', rest[k]) end
        if k == 1 then n = sum - before - hits end
        redis.call('RPUSH', l.key, struct.pack('<ddd', at, n, sum - hits) .. string.sub(rest[k], 25))
      end
      if not some then -- the newest remaining run may not have the longest window
        v.at, v.n, v.sum = run(l, i - 1)
        if v.n > 0 then write_last(l, v, true) end
      end
      return
    end
    if low > 0 then redis.call('LTRIM', l.key, str(low), '-1') end
    local state = redis.call('LINDEX', l.key, '0')
    local at, _, sum = run(l, 0)
    if sum == 0 then
      redis.call('UNLINK', l.key)
      return
    end
    redis.call('LSET', l.key, '0', struct.pack('<ddd', at, sum - before - hits, sum) .. string.sub(state, 25))
  end

  -- give refunds hits consumed at a time, if they still count: those of its tick or, if these have already been refunded, the oldest
  -- ones. If the time is unknown, it refunds the oldest hits, which never admits more than if the hits had not been consumed.
  local function give(l, v, at)
    settle(l, v)
    local hits, tick = a.cost, at and tick_at(l, at) or 0
    if at and v.tick - tick >= l.span then
      hits = 0
    elseif at and v.any and v.used > 0 and hits > 0 then
      local i = find(l, v.first, function(t) return t >= tick end)
      local t, n, sum = run(l, i)
      if t == tick and n > 0 then
        local own = math.min(hits, n)
        remove(l, v, i, sum - n, own)
        hits, v = hits - own, view(l)
      end
    end
    if v.any and v.used > 0 and hits > 0 then
      remove(l, v, v.first, v.before, math.min(hits, v.used))
      v = view(l)
    end
    return {0, left(l, v), reset_in(l, v), 0, 0, 0, 0, 0, 0}
  end

  return {format = '<dddB', limit = limit, view = view, room = room, take = take, give = give}
end
