
-- Concurrency. Mirrors pkg/engine/concurrency.go.
--
-- state  a sorted set with a member for each slot, scored by the time at which it ends. A slot of an owner is named '!',
--        owner, number of the slot among the owner's, from 1; all of these end at the same time. A slot without an owner is
--        named '~', end, number, and so comes last among slots that end at the same time.
-- limit  hits, window
families[3] = function()
  local function limit(key, hits, window) return {key = key, hits = hits, window = window} end

  local function str(n)
    if n == 0 then return '0' end
    return string.format('%.0f', n)
  end

  local function owned(i) return '!' .. a.owner .. struct.pack('>I4', i) end

  local function nobodys(name) return string.sub(name, 1, 1) == '~' end

  -- count_own returns the number of the caller's slots that have not ended.
  local function count_own(l, v)
    local function is(i)
      local stop = redis.call('ZSCORE', l.key, owned(i))
      if not stop or stop + 0 <= now then return false end
      v.own_end = stop + 0
      return true
    end
    if a.owner == '' or not is(1) then return 0 end
    local low, high = 1, 2 -- is(low), and in the end not is(high)
    while is(high) do low, high = high, high * 2 end
    while high - low > 1 do
      local middle = math.floor((low + high) / 2)
      if is(middle) then low = middle else high = middle end
    end
    return low
  end

  -- The first view.dead slots have ended, view.held have not; view.own of these are the caller's, and end at view.own_end.
  -- The last of all slots ends at view.last, and slots taken now end at view.ends.
  local function view(l)
    local v = {ends = now + l.window, dead = 0, held = 0, last = 0, own = 0, own_end = 0}
    v.dead = redis.call('ZCOUNT', l.key, '-inf', str(now))
    v.held = redis.call('ZCARD', l.key) - v.dead
    if v.held > 0 then
      v.last = redis.call('ZRANGE', l.key, '-1', '-1', 'WITHSCORES')[2] + 0
      v.own = count_own(l, v)
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

  -- stop_of returns the end of the i-th slot, from 0, but at most that of a slot taken now.
  local function stop_of(l, v, i)
    return math.min(redis.call('ZRANGE', l.key, str(i), str(i), 'WITHSCORES')[2], v.ends)
  end

  -- whole returns the time until the last slot is free.
  local function whole(v) return v.held > 0 and math.min(v.last, v.ends) - now or 0 end

  -- free returns the time until n of the slots that are not the caller's are free. There must be that many.
  local function free(l, v, n)
    if n <= 0 then return 0 end
    local stop = stop_of(l, v, v.dead + n - 1)
    if v.own > 0 and stop >= math.min(v.own_end, v.ends) then stop = stop_of(l, v, v.dead + n - 1 + v.own) end
    return stop - now
  end

  -- each calls a command with all words, with as many at a time as Lua has room for.
  local function each(l, command, words)
    for i = 1, #words, 1000 do
      redis.call(command, l.key, unpack(words, i, math.min(#words, i + 999)))
    end
  end

  -- fresh returns n new names for slots without an owner that end when slots taken now do.
  local function fresh(l, v, n)
    local i, names = 0, {}
    if v.last >= v.ends then
      local stop = str(v.ends)
      local last = redis.call('ZREVRANGEBYSCORE', l.key, stop, stop, 'LIMIT', '0', '1')[1]
      if last and nobodys(last) then i = struct.unpack('>I4', last, 10) end
    end
    for j = 1, n do names[j] = '~' .. struct.pack('>dI4', v.ends, i + j) end
    return names
  end

  -- keep adds the named slots, or changes their end, such that they end when slots taken now do, and makes Redis keep the
  -- state until then.
  local function keep(l, v, names)
    local words, stop = {}, str(v.ends)
    for i = 1, #names do words[2 * i - 1], words[2 * i] = stop, names[i] end
    each(l, 'ZADD', words)
    redis.call('PEXPIRE', l.key, ttl(v.ends))
  end

  -- settle drops slots that have ended, and makes those that end later than a window's length from now end then.
  local function settle(l, v)
    if v.dead > 0 then redis.call('ZREMRANGEBYSCORE', l.key, '-inf', str(now)) end
    v.dead = 0
    if v.held == 0 or v.last <= v.ends then return end
    local late, owners, others = redis.call('ZRANGEBYSCORE', l.key, '(' .. str(v.ends), '+inf'), {}, {}
    for i = 1, #late do
      local group = nobodys(late[i]) and others or owners
      group[#group + 1] = late[i]
    end
    if #owners > 0 then keep(l, v, owners) end
    if #others > 0 then
      each(l, 'ZREM', others)
      keep(l, v, fresh(l, v, #others))
    end
    v.last = v.ends
  end

  -- hold gives the caller n more slots. If it is an owner, it also renews those that it has.
  local function hold(l, v, n)
    v.held = v.held + n
    if a.owner == '' then
      keep(l, v, fresh(l, v, n))
      v.last = v.ends
      return
    end
    v.last, v.own, v.own_end = v.ends, v.own + n, v.ends
    local names = {}
    for i = 1, v.own do names[i] = owned(i) end
    keep(l, v, names)
  end

  -- release removes n slots of the caller's, or as many as there are; of slots without an owner, the oldest.
  local function release(l, v, n)
    local names = {}
    if a.owner ~= '' then
      for i = v.own, math.max(1, v.own - n + 1), -1 do names[#names + 1] = owned(i) end
      v.own = v.own - #names
    else
      for i = 0, v.held - 1, 100 do
        local slots = redis.call('ZRANGE', l.key, str(i), str(i + 99))
        for j = 1, #slots do
          if #names < n and nobodys(slots[j]) then names[#names + 1] = slots[j] end
        end
        if #names == n then break end
      end
    end
    if #names == 0 then return end
    each(l, 'ZREM', names)
    v.held = v.held - #names
    if v.held > 0 then v.last = redis.call('ZRANGE', l.key, '-1', '-1', 'WITHSCORES')[2] + 0 end
  end

  local function take(l, v)
    if a.write or v.held > 0 and v.last > v.ends then settle(l, v) end
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
    local reset, retry = whole(v), 0
    if refuses then retry = a.cost > l.hits and reset or free(l, v, v.held - v.own + a.cost - l.hits) end
    return {admitted, left, reset, retry, 0, 0, renewed, 0, 0}, refuses
  end

  local function give(l, v)
    settle(l, v)
    if a.cost > 0 then release(l, v, a.cost) end
    return {0, left(l, v), whole(v), 0, 0, 0, 0, 0, 0}
  end

  return {format = '<dd', limit = limit, view = view, room = room, take = take, give = give}
end
