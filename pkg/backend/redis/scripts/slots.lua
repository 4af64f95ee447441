
-- Concurrency. Mirrors pkg/engine/concurrency.go.
--
-- state  a sorted set. For each group of slots that were taken together, or that have the same owner, there is a member
--        with its end as the score: '!', owner; or '~', when they were taken, their end. Numbers that belong to it are
--        the scores of other members, below 0 to tell them from ends: '#', its name: the slots, −n, if there are more
--        than one; and, of an owner, '^', its name: when they were taken, −1 − taken. 'h' has all slots, −1 − n, and 't'
--        when the newest were taken, −1 − taken.
-- limit  hits, window
families[3] = function()
  local MANY = 10000 -- no limit has more slots, and so no state more groups

  local function limit(key, hits, window) return {key = key, hits = hits, window = window} end

  local function str(n)
    if n == 0 then return '0' end
    return string.format('%.0f', n)
  end

  -- number returns the score of a member, or nil.
  local function number(l, name)
    local score = redis.call('ZSCORE', l.key, name)
    return score and score + 0
  end

  -- count returns how many slots a group has: if no script wrote that, 0.
  local function count(l, name)
    local n = -(number(l, '#' .. name) or -1)
    return whole(n, MANY) and n or 0
  end

  local function owned(owner) return '!' .. owner end

  local function nobodys(taken, stop) return '~' .. struct.pack('>dd', taken, stop) end

  -- each calls f with the name, the end and the number of slots of groups that have not ended, the first to end first,
  -- until f returns true.
  local function each(l, v, f)
    if v.shifted then
      for _, g in ipairs(v.shifted) do
        if f(g.name, g.stop, g.n) then return end
      end
      return
    end
    for i = 0, v.held, 100 do
      local groups = redis.call('ZRANGEBYSCORE', l.key, '(' .. str(now), '+inf', 'WITHSCORES', 'LIMIT', str(i), '100')
      for j = 1, #groups, 2 do
        local stop = groups[j + 1] + 0
        if whole(stop, MAX) and f(groups[j], stop, count(l, groups[j])) then return end
      end
      if #groups < 200 then return end
    end
  end

  -- shift returns the groups that have not ended. Those that were taken in the future, before the clock went back, are
  -- as if they had been taken now. It leaves out what no script wrote.
  local function shift(l)
    local all, groups = redis.call('ZRANGEBYSCORE', l.key, '0', '+inf', 'WITHSCORES', 'LIMIT', '0', str(MANY)), {}
    for i = 1, #all, 2 do
      local g = {name = all[i], stop = all[i + 1] + 0, n = count(l, all[i]), taken = -1}
      if string.sub(g.name, 1, 1) ~= '~' then
        g.taken = -1 - (number(l, '^' .. g.name) or 0)
      elseif #g.name == 17 then
        g.taken = struct.unpack('>d', g.name, 2)
      end
      if not (whole(g.taken, MAX) and whole(g.stop, MAX)) then g.taken, g.stop = 0, 0 end
      if g.taken > now then g.taken, g.stop = now, g.stop - (g.taken - now) end
      if g.stop > now then groups[#groups + 1] = g end
    end
    table.sort(groups, function(g, h) return g.stop < h.stop or g.stop == h.stop and g.taken < h.taken end)
    return groups
  end

  -- nothing is a view of no slots.
  local function nothing(l)
    return {stop = now + l.window, dead = {}, held = 0, last = 0, own = 0, own_stop = 0, newest = 0}
  end

  -- absent is the view of a state that counts as absent, as does one without its numbers.
  local function absent(l)
    forget(l.key)
    return nothing(l)
  end

  -- last returns when the last group ends, or 0 if that is no time after now.
  local function last(l)
    local stop = (redis.call('ZRANGE', l.key, '-1', '-1', 'WITHSCORES')[2] or 0) + 0
    return whole(stop, now + 281474976710656) and stop > now and stop or 0
  end

  -- view.held slots are held, those of the groups view.dead have ended; view.own of them are the caller's, and end at
  -- view.own_stop. The last of all ends at view.last, and slots taken now end at view.stop.
  local function view(l)
    local v, all = nothing(l), redis.call('ZMSCORE', l.key, 'h', 't')
    if not all[1] then return absent(l) end
    v.newest, v.held = -1 - (all[2] or 0), -1 - all[1]
    if not whole(v.newest, MAX) or not whole(v.held, MANY) then return absent(l) end
    if v.newest > now then
      v.shifted, v.held = shift(l), 0
      for _, g in ipairs(v.shifted) do
        v.held, v.last = v.held + g.n, g.stop
        if g.name == owned(a.owner) then v.own, v.own_stop = g.n, g.stop end
      end
      return v
    end
    v.dead = redis.call('ZRANGEBYSCORE', l.key, '0', str(now), 'LIMIT', '0', str(MANY))
    for i = 1, #v.dead do v.held = v.held - count(l, v.dead[i]) end
    if v.held == 0 then return #v.dead > 0 and v or absent(l) end
    v.last = last(l)
    if v.held < 0 or v.last == 0 then return absent(l) end
    local stop = a.owner ~= '' and number(l, owned(a.owner))
    if stop and stop > now then
      v.own, v.own_stop = count(l, owned(a.owner)), stop
      if v.own > v.held or not whole(stop, v.last) then return absent(l) end
    end
    return v
  end

  -- left returns how many slots the caller may hold in all, including those that it holds.
  local function left(l, v) return math.max(0, l.hits - v.held + v.own) end

  -- A further take of an owner asks for the same slots again, and gets them even if the limit has fallen below what is
  -- held.
  local function room(l, v)
    local left = left(l, v)
    if a.owner ~= '' and (a.cost <= left or a.cost <= v.own and l.hits > 0) then return a.want end
    return fit(left)
  end

  -- reset_in returns the time until the last slot is free.
  local function reset_in(v) return v.held > 0 and math.max(0, v.last - now) or 0 end

  -- free returns the time until n of the slots that are not the caller's are free. There must be that many.
  local function free(l, v, n)
    local at, mine = now, a.owner ~= '' and owned(a.owner)
    each(l, v, function(name, stop, slots)
      if n <= 0 then return true end
      if name ~= mine then at, n = stop, n - slots end
    end)
    return at - now
  end

  -- put writes a group, which may be known already, and the numbers of the whole state.
  local function put(l, v, name, stop, n, taken, known)
    local words = {stop, name, -1 - v.held, 'h', -1 - v.newest, 't'}
    if n > 1 or known then
      words[7], words[8] = -n, '#' .. name
    end
    if string.sub(name, 1, 1) == '!' then
      words[#words + 1] = -1 - taken
      words[#words + 1] = '^' .. name
    end
    for i = 1, #words, 2 do words[i] = str(words[i]) end
    redis.call('ZADD', l.key, unpack(words))
  end

  -- drop removes groups, or makes Redis forget the state if no slot is held.
  local function drop(l, v, names)
    if v.held == 0 then
      redis.call('DEL', l.key)
      return
    end
    for _, name in ipairs(names) do redis.call('ZREM', l.key, name, '#' .. name, '^' .. name) end
    redis.call('ZADD', l.key, str(-1 - v.held), 'h')
  end

  -- settle drops what has ended, and moves what is from the future to now.
  local function settle(l, v)
    if #v.dead > 0 then drop(l, v, v.dead) end
    v.dead = {}
    if not v.shifted then return end
    redis.call('DEL', l.key)
    v.newest = now
    for _, g in ipairs(v.shifted) do
      if string.sub(g.name, 1, 1) == '~' then g.name = nobodys(g.taken, g.stop) end
      local known = number(l, g.name)
      put(l, v, g.name, g.stop, g.n + (known and count(l, g.name) or 0), g.taken, known)
    end
    if v.held > 0 then redis.call('PEXPIRE', l.key, ttl(v.last)) end
    v.shifted = nil
  end

  -- hold gives the caller n more slots. If it is an owner, it also renews those that it has; none of them ends earlier.
  local function hold(l, v, n)
    local name, stop, known = nobodys(now, v.stop), v.stop, v.own > 0
    v.held = v.held + n
    if a.owner ~= '' then
      name, stop = owned(a.owner), math.max(stop, v.own_stop)
      v.own, v.own_stop = v.own + n, stop
      n = v.own
    else
      known = v.newest == now and number(l, name)
      if known then n = n + count(l, name) end
    end
    v.newest = now
    put(l, v, name, stop, n, now, known)
    if stop > v.last then
      redis.call('PEXPIRE', l.key, ttl(stop))
      v.last = stop
    end
  end

  -- release removes n slots of the caller's, or as many as there are; without an owner, of slots without one, those that
  -- end first.
  local function release(l, v, n)
    local gone, mine = {}, a.owner ~= '' and owned(a.owner)
    local less, fewer
    each(l, v, function(name, _, slots)
      if name == mine or not mine and string.sub(name, 1, 1) == '~' then
        v.held = math.max(0, v.held - math.min(n, slots))
        if slots <= n then gone[#gone + 1] = name else less, fewer = name, slots - n end
        n = math.max(0, n - slots)
        if name == mine then v.own = fewer or 0 end
      end
      return n == 0
    end)
    if #gone > 0 or less then drop(l, v, gone) end
    if less and v.held > 0 then redis.call('ZADD', l.key, str(-fewer), '#' .. less) end
    if v.held > 0 then v.last = last(l) end
  end

  local function take(l, v)
    if a.write then settle(l, v) end
    local left = left(l, v)
    local admitted, refuses = judge(room(l, v))
    local renewed = 0
    if a.write and admitted > 0 then
      local n = spends(admitted, false)
      if a.owner ~= '' then
        n = math.max(0, a.cost - v.own)
        renewed = a.cost - n
      end
      hold(l, v, n)
    end
    local reset, retry = reset_in(v), 0
    if refuses then retry = a.cost > l.hits and reset or free(l, v, v.held - v.own + a.cost - l.hits) end
    return {admitted, left, reset, retry, 0, 0, renewed, 0, 0}, refuses
  end

  local function give(l, v)
    settle(l, v)
    if a.cost > 0 and v.held > 0 then release(l, v, a.cost) end
    return {0, left(l, v), reset_in(v), 0, 0, 0, 0, 0, 0}
  end

  return {format = '<dd', limit = limit, view = view, room = room, take = take, give = give}
end
